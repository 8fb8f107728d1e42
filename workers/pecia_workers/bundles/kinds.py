"""Kind and language of a document, by its words, with most weight on its title."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pecia_schemas.bundles import DocumentKind

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
