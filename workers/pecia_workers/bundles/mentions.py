"""Mentions of the patient on a page, by label and place: English, German, Korean, simple forms in other languages."""

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from pecia_schemas.blocks import Box, Line
from pecia_schemas.bundles import IdentityPlace, IdentitySign
from pecia_schemas.identities import Births, Claim, compare, is_personal, name_parts, number_key
from pecia_schemas.results import Page
from pecia_workers.layout.lines import around, touch, words_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A line or a table's cell."""

    text: str
    box: Box | None
    line: Line | None = None


_LABELS: Final = re.compile(
    r"(?<!\w)(?:(?P<relative>(?:mother|father|parent|guardian|sister|brother|twin|spouse|husband|wife|son"
    r"|daughter|next of kin|relative|(?:emergency )?contact(?: person)?|guarantor|policy ?holder|subscriber"
    r"|witness|mutter|vater|schwester|bruder|ehefrau|ehemann|sohn|tochter|angehörige\w*|ansprechpartner\w*"
    r"|vormund|zeuge|보호자|법정대리인|대리인|배우자|가족|증인)(?:'s)?)"
    r"|(?P<doctor>physician|doctor|dr\.|prof\.|consultant|surgeon|attending|referr\w+|prescriber|nurse"
    r"|(?:haus)?arzt|(?:haus)?ärztin|behandler|(?:담당|주치|처방|설명)?\s?의사(?:\s?성명)?|담당의|주치의"
    r"|간호사|의료기관\s?명?칭?|병원명|hospital|clinic|praxis|klinik|test|drug|medication|file|user|company)"
    r"|(?P<first>first name|given name|forename|vorname|prénom)"
    r"|(?P<last>last name|surname|family name|nachname|familienname)"
    r"|(?P<name>patient(?:'s)?(?: full)? name|name of (?:the )?patient|(?:full |pt\.? )?name|patientenname"
    r"|name des patienten|(?:your |our |ihre[nr]? )?patient(?:in|en)?|pt\.|re|regarding|betr(?:eff|\.)?"
    r"|versicherte[rn]?|(?:환자|수진자)?\s?성\s*명|환자\s?명|수진자\s?명?|환자|이름|nom du patient|nom|nombre"
    r"|paciente|患者姓名|姓名)"
    r"|(?P<birth>date of birth|birth ?date|d\.?o\.?b\.?|born(?: on)?|geb(?:oren|\.)?(?: am)?|geburtsdatum"
    r"|geb\.-?datum|생\s?년\s?월\s?일|생일|née? le|date de naissance|fecha de nacimiento|出生日期|\*)"
    r"|(?P<record>m\.?r\.?n\.?|medical record(?: no\.?| number)?|record (?:no\.?|number)|chart (?:no\.?"
    r"|number)|pat(?:ient)?(?:en)?[ .-]*(?:id|no|nr|number|nummer)\.?|hospital (?:no\.?|number)"
    r"|(?:환자)?\s?등록\s?번호|환자\s?번호|병록\s?번호|차트\s?번호)"
    r"|(?P<insurance>insurance (?:no\.?|number|id)|policy (?:no\.?|number)|member (?:id|no\.?)|nhs (?:no\.?"
    r"|number)|versicherten-?(?:nr\.?|nummer)|versicherungs-?(?:nr\.?|nummer)|kvnr|(?:건강)?보험증?\s?번호)"
    r"|(?P<stop>sex|gender|geschlecht|성별|age|alter|나이|phone|tel|fax|address|anschrift|주소|전화(?:번호)?"
    r"|연락처|date|datum|(?:ward|station|room|page)(?=\s*[:.#]|\s*\d)|병동|진료과|seite|case (?:no\.?|number"
    r"|id)|fall-?(?:nr\.?|nummer)|diagnos\w+|접수\s?번호|관계|invoice(?: no\.?)?|rechnung\S*"
    r"|accession(?: no\.?)?)"
    r")(?P<end>\s*[:：.#]+\s*|\s*$|\s+|(?<=\*)|(?=[|,)]))",  # noqa: RUF001
    re.IGNORECASE,
)
_WORD: Final = r"(?:[A-ZÀ-ÖØ-Þ][\w'\u2019.-]*|van|von|de|der|den|zu|del|la)"
_LATIN: Final = rf"{_WORD}(?:,? {_WORD}){{0,4}}"
_NAME: Final = re.compile(
    rf"(?:{_LATIN}|[\uac00-\ud7a3][\uac00-\ud7a3*○◯](?:[\uac00-\ud7a3*○◯]{{0,3}})"
    rf"|[\uac00-\ud7a3] [\uac00-\ud7a3]{{2,3}}|[\u4e00-\u9fff]{{2,4}})"
)
_LEADING: Final = re.compile(rf"\W*(?:(?:Mrs?|Ms|Miss|Frau|Herrn?)\b\.? )?(?P<name>{_NAME.pattern})(?![\w])")
_BEFORE: Final = re.compile(
    rf"(?:^|.*[|:;(/]\s*|.*\b(?:Mrs?|Ms|Miss|Frau|Herrn?"
    rf"|[Pp]atient(?:in)?)\.? )(?P<name>{_NAME.pattern})[\s,(|·/-]*(?:\(?[mfwMFW남여]\)?[\s,|/]*)?$"
)
_NO_NAME: Final = re.compile(
    r"hospital|clinic|klinik|praxis|center|centre|labor|gmbh|병원|의원|센터|street|report|befund|letter"
    r"|invoice|consent|record|certificate|page|seite|insurance|number|date|birth|sex|male|female|signature"
    r"|unterschrift|the|and|has|with|is|was|information|details|data|daten|정보|서명|동의|진단|검사|처방"
    r"|번호|본인|참고",
    re.IGNORECASE,
)
_MONTH_NAMES: Final = "jan feb mar/mär/mrz apr may/mai jun jul aug sep oct/okt nov dec/dez"
_MONTHS: Final = {
    name: number for number, names in enumerate(_MONTH_NAMES.split(), 1) for name in names.split("/")
}
_DIGIT: Final = r"[\dOolISB]"
_DATES: Final = re.compile(
    rf"(?<![\w.])(?:(?P<y>[12Il]{_DIGIT}{{3}})\s?[-./년]\s*(?P<m>{_DIGIT}{{1,2}})\s?[-./월]\s*(?P<d>{_DIGIT}{{1,2}})(?:\s?일)?"
    rf"|(?P<d2>{_DIGIT}{{1,2}})(?P<sep>[./-])\s?(?P<m2>{_DIGIT}{{1,2}})[./-]\s?(?P<y2>{_DIGIT}{{4}}"
    rf"|{_DIGIT}{{2}})"
    r"|(?P<d3>\d{1,2})\.? (?P<n3>[^\W\d_]{3,9})\.?,? (?P<y3>\d{4})"
    r"|(?P<n4>[^\W\d_]{3,9})\.? (?P<d4>\d{1,2}),? (?P<y4>\d{4}))(?!\w)"
)
AS_DIGITS: Final = str.maketrans("OolISB", "001158")
_NUMBER: Final = re.compile(r"\W*(?P<number>[A-Z]{0,4}[- ]?\d[\w-]{3,}(?:[ -]\d{2,})*)", re.IGNORECASE)


def dates_in(text: str) -> Iterator[tuple[re.Match[str], Births]]:
    """Yield the dates of a text, each with all its possible readings."""
    for match in _DATES.finditer(text):
        if dates := frozenset(_readings(match)):
            yield match, dates


def _readings(match: re.Match[str]) -> Iterator[dt.date]:
    part = {
        name: (value or "").translate(AS_DIGITS)
        for name, value in match.groupdict().items()
        if name[0] != "n"
    }
    if part["y"]:
        orders = [(part["y"], part["m"], part["d"])]
    elif part["y2"]:
        orders = [(part["y2"], part["m2"], part["d2"])]
        if match["sep"] == "/":
            orders.append((part["y2"], part["d2"], part["m2"]))
    else:
        name = (match["n3"] or match["n4"])[:3].casefold()
        orders = [(part["y3"] or part["y4"], str(_MONTHS.get(name, 0)), part["d3"] or part["d4"])]
    for year, month, day in orders:
        for century in ("",) if len(year) == 4 else ("19", "20"):  # noqa: PLR2004
            try:
                yield dt.date(int(century + year), int(month), int(day))
            except ValueError:
                continue


def pieces_of(page: Page) -> list[Piece]:
    """Return a page's lines, and its tables' cells, in reading order."""
    pieces = []
    for block in page.blocks:
        if block.table:
            pieces += [Piece(cell.text.replace("\n", " "), cell.box) for cell in block.table.cells]
        elif block.lines:
            pieces += [Piece(line.text, line.box, line) for line in block.lines]
        elif block.kind != "barcode":
            pieces += [Piece(text, None) for text in block.text.split("\n")]
    return [piece for piece in pieces if piece.text.strip()]


@dataclass(slots=True)
class _Found:
    sign: IdentitySign
    text: str
    piece: Piece
    system: str = ""
    births: Births = frozenset()


def claims_of(page: Page, pieces: Sequence[Piece]) -> list[Claim]:
    """Return a page's claims about its patient: one, or several that contradict each other."""
    claims: list[Claim] = []
    for found in _found(pieces):
        claim = _claim(found, page)
        fits = next((known for known in claims if _fits(known, claim)), None)
        if fits:
            fits.merge(claim)
        elif claims and not claim.name and not _repeats(claims[-1], claim):
            claims[-1].merge(claim)
        else:
            claims.append(claim)
    return claims


def _fits(known: Claim, claim: Claim) -> bool:
    return not compare(known, claim).contradicts and not (
        claim.name
        and known.name
        and not set(name_parts(known.name)) & set(name_parts(claim.name))
        and compare(Claim(known.name), Claim(claim.name)).contradicts
    )


def _repeats(known: Claim, claim: Claim) -> bool:
    return bool(known.births and claim.births) or bool(known.numbers.keys() & claim.numbers.keys())


def _claim(found: _Found, page: Page) -> Claim:
    box = _box(found)
    doubted = any(
        touch(doubt.box, box) if doubt.box and box else bool(doubt.text) and doubt.text in found.text
        for doubt in page.doubts
    )
    place = IdentityPlace(sign=found.sign, text=found.text, page=page.number, box=box, doubted=doubted)
    key = number_key(found.text)
    claim = Claim(places=[place])
    if found.sign is IdentitySign.NAME:
        claim.name = found.text
    elif found.sign is IdentitySign.BIRTH_DATE:
        claim.births = found.births
    elif found.sign is IdentitySign.RECORD_NUMBER:
        claim.numbers[found.system] = {key}
    else:
        claim.policies.add(key)
        if is_personal(key):
            claim.numbers["insurance"] = {key}
    return claim


def _box(found: _Found) -> Box | None:
    line = found.piece.line
    if line is None:
        return found.piece.box
    start, place = line.text.find(found.text), 0
    inner = []
    for word in words_of(line):
        place = max(place, line.text.find(word.text, place))
        if place < start + len(found.text) and start < place + len(word.text):
            inner.append(word.box)
        place += len(word.text)
    return around(inner) if inner and start >= 0 else line.box


def _found(pieces: Sequence[Piece]) -> Iterator[_Found]:
    others = 0
    ends_on_relative = False
    parts: dict[str, tuple[str, Piece]] = {}
    for number, piece in enumerate(pieces):
        others -= others > 0
        text = piece.text
        labels = list(_LABELS.finditer(text))
        before = text[: labels[0].start()] if labels else text
        is_heading = len(labels) == 1 and len(text.split()) <= 4 and ":" not in text  # noqa: PLR2004
        if is_heading and (labels[0]["relative"] or (labels[0]["doctor"] and labels[0][0] == text)):
            others = 5 if labels[0]["relative"] else 2  # what follows is another person's
            continue
        if any(label["name"] for label in labels) and re.match(r"\W*(patient|환자)", text, re.IGNORECASE):
            others = 0
        if labels and not others and not ends_on_relative:
            yield from _in_piece(pieces, number, labels, before, parts)
        tail = list(_LABELS.finditer(" ".join(text.split()[-3:])))
        ends_on_relative = bool(tail and tail[-1]["relative"] and text[-1:] not in ".:：")  # noqa: RUF001
    if {"first", "last"} <= parts.keys():
        (first, _), (last, piece) = parts["first"], parts["last"]
        yield _Found(IdentitySign.NAME, f"{first} {last}", piece)
    elif "last" in parts:
        yield _Found(IdentitySign.NAME, *parts["last"])


def _in_piece(  # noqa: C901, PLR0912  one branch for each kind of label
    pieces: Sequence[Piece],
    number: int,
    labels: Sequence[re.Match[str]],
    before: str,
    parts: dict[str, tuple[str, Piece]],
) -> Iterator[_Found]:
    piece, text = pieces[number], pieces[number].text
    is_other = False
    if (
        _kind(labels[0]) in ("birth", "record")
        and (match := _BEFORE.match(before))
        and _is_name(match["name"])
    ):
        yield _Found(IdentitySign.NAME, match["name"].strip(" ,"), piece)
    for label, after in zip_longest(labels, labels[1:]):
        kind = _kind(label)
        value = text[label.end() : after.start() if after else None]
        if kind in ("relative", "doctor"):
            is_other = after is None or not value.strip(" '’s") or kind == "relative"  # noqa: RUF001
            continue
        if is_other:
            is_other = kind not in ("record", "stop", "insurance") and bool(re.match(r"\W*$", value))
            continue
        is_whole = not value.strip() and after is None and label.start() <= 2  # noqa: PLR2004
        where = piece
        if is_whole and (neighbour := _neighbour(pieces, number)):
            where, value = neighbour, neighbour.text
            if _LABELS.match(value):
                continue
        if kind in ("name", "first", "last"):
            is_marked = any(sign in label["end"] for sign in ":：") or is_whole  # noqa: RUF001
            is_alone = label.start() <= 2 and len(value.split()) <= 4  # noqa: PLR2004
            qualified = re.search(r"[^\W\d_]{2,}\s$", text[: label.start()]) and label is labels[0]
            in_prose = re.match(r"(Mrs?|Ms|Miss|Frau|Herrn?)\b", value) and "patient" in label[0].lower()
            if not in_prose and (qualified or not (is_marked or is_alone)):
                continue
            if (match := _LEADING.match(value)) and _is_name(match["name"]):
                if kind == "name":
                    yield _Found(IdentitySign.NAME, match["name"].strip(" ,."), where)
                else:
                    parts.setdefault(kind, (match["name"].strip(" ,."), where))
        elif kind == "birth":
            for match, births in dates_in(value[:24]):
                past = frozenset(date for date in births if date <= dt.date.today())  # noqa: DTZ011
                yield _Found(IdentitySign.BIRTH_DATE, match[0], where, births=past or births)
                break
        elif kind in ("record", "insurance") and (match := _NUMBER.match(value)):
            sign = IdentitySign.RECORD_NUMBER if kind == "record" else IdentitySign.INSURANCE_NUMBER
            system = re.sub(r"[\W_]|number|nummer|no|nr|id|en|환자", "", label[kind].casefold())
            yield _Found(sign, match["number"].strip(), where, system="mrn" if "record" in system else system)


def _kind(label: re.Match[str]) -> str:
    return next(name for name, value in label.groupdict().items() if value is not None and name != "end")


def _is_name(text: str) -> bool:
    parts = name_parts(text)
    digits = sum(map(str.isdigit, text))
    return (
        bool(parts)
        and digits <= len(text) // 6
        and not any(_NO_NAME.fullmatch(part) for part in text.split())
        and not (
            _NO_NAME.search(text)
            and re.search("[\uac00-\ud7a3]|GmbH|[Hh]ospital|[Cc]lini|[Kk]linik", text) is not None
        )
    )


def _neighbour(pieces: Sequence[Piece], number: int) -> Piece | None:
    """Return the piece to the right of a label, or below it."""
    box = pieces[number].box
    near = pieces[number + 1 : number + 12]
    if box is None:
        return near[0] if near else None
    height = box.bottom - box.top
    boxes = [(piece, piece.box) for piece in near if piece.box]
    right = [
        (other.left, piece)
        for piece, other in boxes
        if other.left >= box.right - height
        and min(box.bottom, other.bottom) - max(box.top, other.top) > height / 2
    ]
    if right and not _LABELS.match((beside := min(right, key=lambda pair: pair[0])[1]).text):
        return beside
    below = [
        (other.top, piece)
        for piece, other in boxes
        if other.left < box.right and box.left < other.right and 0 <= other.top - box.top < 4 * height
    ]
    return min(below, key=lambda pair: pair[0])[1] if below else None
