"""Signs of one page for the split, in little memory: page number, heading, kind, dates and patient."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pecia_schemas.blocks import BlockKind
from pecia_schemas.bundles import DocumentKind
from pecia_schemas.identities import Claim
from pecia_schemas.results import Page, Verdict
from pecia_workers.bundles.kinds import Evidence, evidence_of, languages_in, title_kind
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
