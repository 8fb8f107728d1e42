"""Signs of one page for the split, in little memory: page number, heading, kind, language, dates and patient."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pecia_schemas.blocks import BlockKind
from pecia_schemas.bundles import DocumentKind
from pecia_schemas.identities import Claim
from pecia_schemas.results import Page, Verdict
from pecia_workers.bundles.mentions import AS_DIGITS, Piece, claims_of, dates_in, pieces_of

_N: Final = r"([\dOolI]{1,3})"
_PAGE_NUMBER: Final = re.compile(
    rf"(?:\b(?:page|seite|pagina|página|blatt|pg\.?|p\.|s\.)\s*|^\W*){_N}\s*(?:of|von|de|sur"
    rf"|aus|/|\|)\s*{_N}(?:\s*(?:페이지|쪽|면))?\W*(?:$|[|·])"
    rf"|(?P<total>\d{{1,3}})\s*(?:쪽|페이지|장|면)\s*중\s*(?P<place>\d{{1,3}})\s*(?:쪽|페이지|장|면)?"
    rf"|\b(?:page|seite|blatt)\s*{_N}\s*$|^\W*[-\u2013\u2014]\s*{_N}\s*[-\u2013\u2014]\W*$|^(\d{{1,2}})$",
    re.IGNORECASE,
)
_SEPARATOR: Final = re.compile(
    r"(?:PECIA-SEPARATOR|SEPARATOR|TRENNBLATT|TRENNSEITE|PATCH[- ]?(?:CODE[- ]?)?(?:T|I{1,3}"
    r"|IV|VI|[1-6])\b|구분지|간지$)",
    re.IGNORECASE,
)
_ORGANISATION: Final = re.compile(
    r"hospital|clinic|medical cent|practice|laborator|surgery|klinik|krankenhaus|praxis"
    r"|labor\b|zentrum|gmbh|병원|의원|의료원|센터|검사실"
    r"|(?:tel|phone|fax|전화)\b|@|www\.", re.IGNORECASE
)  # fmt: skip
_GENERIC: Final = re.compile(
    r"tel|phone|telefon|fax|전화|hospital|clinic|medical|praxis|klinik|dr|www|com|gmbh|page|seite"
)
"""Words of headings that do not distinguish documents."""
_OPENING: Final = re.compile(r"^(?:dear |sehr geehrte|liebe[r]? |to whom it may)", re.IGNORECASE)
_CLOSING: Final = re.compile(
    r"sincerely|regards|faithfully|mit freundlichen|hochachtungsvoll|signature|unterschrift"
    r"|\(서명\)|\(인\)|배상|amount due|gesamtbetrag|end of (?:report|document)|총\s?합계",
    re.IGNORECASE,
)
_OF_DOCUMENT: Final = re.compile(
    r"(?:^|\s)(?:date(?: of (?:issue|report))?|issued(?: on)?|report(?:ed)? date|datum|ausgestellt am|발행일"
    r"|작성일|처방일|교부\s?연월일|보고일|일자|날짜|작성\s?일자)\s*[:\uff1a]?\s*$",
    re.IGNORECASE,
)
_TOP, _BOTTOM = 0.16, 0.9
_FEW_WORDS, _MOST_HEAD = 8, 24


@dataclass(frozen=True, slots=True)
class PageSigns:
    """Signs kept of a page."""

    number: int
    size: tuple[int, int]
    blank: bool
    separates: bool
    """Whether it is a separator sheet, or bears a barcode or mark that starts a document."""
    is_sheet: bool
    """Whether it is a separator sheet and nothing else."""
    barcodes: frozenset[str]
    place: int | None
    """Its page number within its document, if printed."""
    total: int | None
    head: frozenset[str]
    letterhead: bool
    titles: dict[str, DocumentKind]
    opens: bool
    closes: bool
    starts_small: bool
    """Whether its text starts in the middle of a sentence."""
    evidence: Evidence
    languages: Counter[str]
    date: dt.date | None
    claims: tuple[Claim, ...]


def signs_of(page: Page) -> PageSigns:
    """Return the signs of a page."""
    pieces = pieces_of(page)
    codes = [block.text for block in page.blocks if block.kind is BlockKind.BARCODE]
    text = "\n".join(piece.text for piece in pieces)
    words = text.split()
    separates = any(map(_SEPARATOR.match, codes))
    is_sheet = len(words) <= _FEW_WORDS and (
        separates or any(_SEPARATOR.fullmatch(piece.text.strip(" -*=_")) for piece in pieces)
    )
    top = _edge(page, pieces, top=True)
    bottom = _edge(page, pieces, top=False)
    place, total = _page_number([piece.text for piece in [*top, *bottom]])
    titles = {}
    if not (place and place > 1):
        for piece in pieces[: len(top) + 4]:
            if kind := title_kind(piece.text):
                titles[" ".join(piece.text.split())] = kind
                break
    body = [piece.text.strip() for piece in pieces if piece not in top and piece not in bottom] or [""]
    houses = [piece for piece in top if _ORGANISATION.search(piece.text)]
    head = [word for piece in houses or top for word in re.findall(r"[^\W\d_]{2,}", piece.text.casefold())]
    return PageSigns(
        number=page.number,
        size=(page.width, page.height)
        if page.scale == 1
        else (round(page.width / page.scale), round(page.height / page.scale)),
        blank=page.blank or page.verdict is Verdict.BLANK or not (words or codes),
        separates=separates or is_sheet,
        is_sheet=is_sheet,
        barcodes=frozenset(code for code in codes if not _SEPARATOR.match(code)),
        place=place,
        total=total,
        head=frozenset(word for word in head[:_MOST_HEAD] if not _GENERIC.fullmatch(word)),
        letterhead=bool(houses),
        titles=titles,
        opens=any(_OPENING.match(piece.text) for piece in pieces[:20]),
        closes=any(_CLOSING.search(piece.text) for piece in pieces[-6:]),
        starts_small=body[0][:1].islower(),
        evidence=evidence_of(text),
        languages=languages_in(text),
        date=_date_of(pieces),
        claims=tuple(claims_of(page, pieces)),
    )


def _edge(page: Page, pieces: Sequence[Piece], *, top: bool) -> list[Piece]:
    if any(piece.box is None for piece in pieces):
        return list(pieces[:3] if top else pieces[-2:])
    if top:
        return [piece for piece in pieces if piece.box and piece.box.bottom < _TOP * page.height]
    return [piece for piece in pieces if piece.box and piece.box.top > _BOTTOM * page.height]


def _page_number(texts: Sequence[str]) -> tuple[int | None, int | None]:
    place: int
    total: int | None
    for text in texts:
        for match in _PAGE_NUMBER.finditer(text):
            if match["total"]:
                place, total = int(match["place"]), int(match["total"])
            else:
                numbers = [
                    int(group.translate(AS_DIGITS))
                    for group in match.groups()
                    if group and group != match["place"]
                ]
                place, total = numbers[0], numbers[1] if len(numbers) > 1 else None
            if place and (total is None or place <= total):
                return place, total
    return None, None


def _date_of(pieces: Sequence[Piece]) -> dt.date | None:
    """Return the date of the document: one with a label, or one alone on its line, at most after a place name."""
    alone = None
    for number, piece in enumerate(pieces):
        for match, dates in dates_in(piece.text):
            before = piece.text[: match.start()]
            label = before or (pieces[number - 1].text if number else "")
            if _OF_DOCUMENT.search(label):
                return (
                    max(dates)
                    if match["sep"] is None
                    else min(dates, key=lambda date: (str(date.day) not in match[0][:2], date))
                )
            if (
                alone is None
                and re.fullmatch(r"(?:[^\W\d_. ]{2,20},? (?:den )?)?", before)
                and not piece.text[match.end() :].strip(" .")
            ):
                previous = pieces[number - 1].text if number else ""
                if not re.search(
                    r"birth|born|geb|생년|print|gedruckt|출력|valid|until|[:\uff1a]\s*$",
                    previous,
                    re.IGNORECASE,
                ):
                    alone = min(dates)
    return alone


_TITLES: Final[Mapping[DocumentKind, str]] = {
    DocumentKind.PRESCRIPTION: r"prescription|medication plan|rezept|verordnung|medikationsplan|처\s?방\s?전|ordonnance"
    r"|receta",
    DocumentKind.DIAGNOSIS: r"(?:medical|health|diagnos\w+) certificate|certificate of diagnosis|diagnosis report"
    r"|attest\b"
    r"|ärztliche bescheinigung|diagnosebescheinigung|진\s?단\s?서|certificat médical",
    DocumentKind.LAB_RESULT: r"lab(?:oratory)?\.? (?:report|results?)|test results|pathology report"
    r"|labor(?:befund|bericht|werte)|검\s?사\s?(?:결과|보고)\s?(?:지|서)?",
    DocumentKind.CHART: r"(?:progress|nursing|clinical|ward) (?:notes?|records?)|(?:medical|patient"
    r"|vital signs?) chart|chart notes|verlaufs(?:bericht|dokumentation|bogen)|pflege(?:bericht"
    r"|dokumentation)|krankenblatt|(?:경과|간호|진료)\s?기록\s?지?|임상관찰",
    DocumentKind.LETTER: r"(?:referral|discharge|clinic(?:al)?|medical|doctor'?s) letter|discharge summary"
    r"|(?:arzt|entlassungs?)brief|überweisung|(?:진료)?\s?(?:의뢰|회송|회신)서|소견서",
    DocumentKind.INVOICE: r"invoice|statement of account|bill\b|rechnung|honorarnote|(?:진료비)?\s?(?:계산서|영수증"
    r"|청구서)|facture|factura",
    DocumentKind.CONSENT: r"(?:informed )?consent(?: form)?|einwilligung\w*|einverständnis\w*|aufklärungs(?:bogen"
    r"|blatt)|동\s?의\s?서",
}
_WORDS: Final[Mapping[DocumentKind, str]] = {
    DocumentKind.PRESCRIPTION: r"\brx\b|\bsig\b|dispense|refills?|prescriber|tablets?|capsules?|(?:once|twice"
    r"|three times) (?:a day|daily)"
    r"|tabletten|\d-\d-\d(?!\d)|einnahme|투약\s?일수|용법|1일\s?\d회|1회\s?투약|조제|정\s?\d+mg|식후",
    DocumentKind.DIAGNOSIS: r"icd-?10?|certif(?:y|ied)|unfit for|incapacit\w+|bescheinig\w+"
    r"|arbeitsunfähig\w*|병명|상병|질병\s?분류|진단합니다|향후\s?치료|발병일|진단일|diagnosis:",
    DocumentKind.LAB_RESULT: r"reference (?:range|interval)|specimen|analyte|flag\b|h[ae]emoglobin|leu[ck]o[ck]yte\w*"
    r"|creatinine|glucose|referenzbereich"
    r"|messwert|material|참고치|검체|검사명|결과치|mmol/l|mg/dl|g/dl",
    DocumentKind.CHART: r"\bsoap\b|subjective|objective|assessment|vitals?|\bbp\b|pulse|shift|nurse"
    r"|observations?|visite|puls\b|blutdruck|활력\s?징후|혈압|맥박|체온|간호사|주호소|\d\d:\d\d",
    DocumentKind.LETTER: r"^dear |sincerely|kind regards|yours faithfully|thank you for (?:referring|seeing)"
    r"|sehr geehrte|mit freundlichen|kollegialen|귀하|의뢰드립니다|감사합니다|배상|회신",
    DocumentKind.INVOICE: r"amount due|sub-?total|total\b|payment|\bvat\b|iban|due date|quantity|unit price"
    r"|gesamtbetrag|zahlbar|mwst|betrag|합계|본인\s?부담금|공단\s?부담금|납부|수납|급여|₩|€|원\b",
    DocumentKind.CONSENT: r"i (?:hereby )?(?:consent|agree|understand|authori[sz]e)|risks?|withdraw|procedure"
    r"|signature of patient|willige ein|risiken"
    r"|widerruf\w*|동의합니다|합병증|설명을 듣고|자필|서명",
}
_TITLE_OF: Final = {
    kind: re.compile(rf"(?<!\w)(?:{words})", re.IGNORECASE) for kind, words in _TITLES.items()
}
_WORD_OF: Final = {kind: re.compile(words, re.IGNORECASE | re.MULTILINE) for kind, words in _WORDS.items()}
_OF_TITLE, _OF_WORD, _MOST_WORDS = 4.0, 0.8, 4
_OTHER: Final = 1.5
"""Weight that the words of a kind must exceed."""
_LONG_TITLE: Final = 48
_MOST_TOLD: Final = 5

Evidence = dict[DocumentKind, Counter[str]]


def title_kind(text: str) -> DocumentKind | None:
    """Return the kind that a title names, if the line is a title."""
    if len(text) > _LONG_TITLE or text.rstrip()[-1:] in ".,;:":
        return None
    spaced = re.sub(r"(?<=\b\w) (?=\w\b)", "", text)  # R E Z E P T
    for kind, shape in _TITLE_OF.items():
        match = shape.search(spaced)
        if match and len(match[0]) * 2 >= len(spaced.strip()):
            return kind
    return None


def evidence_of(text: str) -> Evidence:
    """Return the words of a text that indicate each kind."""
    found = {}
    for kind, shape in _WORD_OF.items():
        if words := Counter(word.strip().casefold() for word in shape.findall(text)):
            found[kind] = words
    return found


def judge(
    titles: Mapping[str, DocumentKind], evidence: Evidence
) -> tuple[DocumentKind, float, tuple[str, ...]]:
    """Return the likeliest kind, its probability, and the words that indicate it; `titles` are the first page's."""
    scores = {kind: _OF_WORD * min(_MOST_WORDS, len(words)) for kind, words in evidence.items()}
    for kind in set(titles.values()):
        scores[kind] = scores.get(kind, 0.0) + _OF_TITLE
    weights = {kind: math.exp(score) for kind, score in scores.items()} | {
        DocumentKind.OTHER: math.exp(_OTHER)
    }
    kind = max(weights, key=lambda kind: weights[kind])
    words = [title for title, named in titles.items() if named is kind]
    words += [word for word, _ in evidence.get(kind, Counter[str]()).most_common()]
    return (
        kind,
        weights[kind] / (sum(weights.values()) + len(DocumentKind) - len(weights)),
        tuple(words[:_MOST_TOLD]),
    )


_STOPS: Final = {
    "en": "the of and to is was with for on this that please patient name date",
    "de": "der die das und mit ist wir nicht von zur bei am im den des patient geboren datum",
    "fr": "le la les et des du est une pour avec dans patient",
    "es": "el la los y de del es una para con en paciente",
}
_LANGUAGE_OF: Final = {language: frozenset(words.split()) for language, words in _STOPS.items()}
_SCRIPTS: Final = (
    ("ko", re.compile("[\uac00-\ud7a3]")),
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
)


def languages_in(text: str) -> Counter[str]:
    """Return how many letters of a text indicate each language."""
    letters = sum(map(str.isalpha, text))
    for language, script in _SCRIPTS:
        if (count := len(script.findall(text))) * 4 > letters:
            return Counter({language: 3 * count})
    words = Counter(re.findall(r"[^\W\d_]+", text.casefold()))
    scores = {name: sum(words[word] for word in stops) for name, stops in _LANGUAGE_OF.items()}
    return Counter({name: 5 * score for name, score in scores.items() if score})
