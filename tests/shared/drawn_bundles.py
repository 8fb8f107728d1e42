"""Bundles of pages as they are read, drawn from seeds, and the truth about them: documents, kinds, patients.

`python -m tests.shared.drawn_bundles` fits the weights of `pecia_workers.bundles.splitting` on some of them and prints
them. People and houses are invented.
"""

import datetime as dt
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Line, Source, Table
from pecia_schemas.bundles import DocumentKind
from pecia_schemas.results import Page, Verdict

_GIVEN: Final[dict[str, list[str]]] = {
    "en": [
        "Anna", "Anne", "Maria", "Marie", "Peter", "John", "Laura", "Lara", "Thomas", "Emma", "Emily",
        "Oliver", "George", "Helen", "Ellen", "Daniel", "Daniela",
    ],
    "de": [
        "Anna", "Anne", "Jürgen", "Björn", "Käthe", "Lena", "Lina", "Hans", "Hanna", "Uwe", "Jan", "Jana",
        "Stefan", "Stefanie", "Paul", "Paula",
    ],
    "ko": [
        "민수", "민서", "지훈", "지은", "서연", "서윤", "하준", "하은", "도윤", "예진", "수빈", "현우",
        "현주", "영희", "철수",
    ],
}  # fmt: skip
_FAMILY: Final = {
    "en": [
        "Meyer", "Smith", "Miller", "Brown", "Walker", "Harris", "Cooper", "Bailey", "Fletcher", "Turner",
        "Ward", "Hughes",
    ],
    "de": [
        "Müller", "Schmidt", "Schäfer", "Koch", "Weiß", "Krüger", "Lange", "Vogel", "Neumann", "Böhm",
        "Schulze",
    ],
    "ko": ["김", "이", "박", "최", "정", "강", "조", "윤", "장", "임"],
}  # fmt: skip
_HOUSES: Final = {
    "en": (
        "St. Mary Hospital", "Riverside Medical Centre", "Dr. Jones Family Practice",
        "Northfield Laboratories", "Oak Tree Clinic",
    ),
    "de": ("Klinikum Nordstadt", "Praxis Dr. Weber", "Labor Berlin Süd GmbH", "Krankenhaus am Park"),
    "ko": ("서울한빛병원", "푸른내과의원", "대한의료원", "중앙검사센터", "하나정형외과의원"),
}  # fmt: skip
_TITLES: Final[dict[DocumentKind, dict[str, tuple[str, ...]]]] = {
    DocumentKind.PRESCRIPTION: {
        "en": ("Prescription", "Medication Plan"), "de": ("Rezept", "Medikationsplan"),
        "ko": ("처방전", "처 방 전"),
    },
    DocumentKind.DIAGNOSIS: {
        "en": ("Medical Certificate", "Diagnosis Report"), "de": ("Ärztliche Bescheinigung",),
        "ko": ("진단서", "진 단 서"),
    },
    DocumentKind.LAB_RESULT: {
        "en": ("Laboratory Report", "Lab Results"), "de": ("Laborbefund",),
        "ko": ("검사결과지", "검사 결과 보고서"),
    },
    DocumentKind.CHART: {
        "en": ("Progress Notes", "Nursing Record"), "de": ("Verlaufsbericht",),
        "ko": ("경과기록지", "간호기록지"),
    },
    DocumentKind.LETTER: {
        "en": ("Referral Letter", "Discharge Letter"), "de": ("Arztbrief",), "ko": ("진료의뢰서", "회신서"),
    },
    DocumentKind.INVOICE: {
        "en": ("Invoice", "INVOICE"), "de": ("Rechnung",), "ko": ("진료비 계산서", "영수증"),
    },
    DocumentKind.CONSENT: {
        "en": ("Informed Consent", "Consent Form"), "de": ("Einwilligungserklärung",),
        "ko": ("수술 동의서", "동의서"),
    },
}  # fmt: skip
_BODY: Final[dict[DocumentKind, dict[str, tuple[str, ...]]]] = {
    DocumentKind.PRESCRIPTION: {
        "en": (
            "Ramipril 5 mg 30 tablets", "Sig: once daily", "Dispense 30, refills 2",
            "Metformin 500 mg tablets twice daily", "Take one capsule at night",
        ),
        "de": ("Ramipril 5 mg 30 Tabletten 1-0-0", "Einnahme morgens", "Metformin 500 mg Tabletten 1-0-1"),
        "ko": (
            "아목시실린캡슐 250mg 1일 3회", "1회 투약량 1정 투약일수 5일", "용법: 식후 30분 복용",
            "조제 시 참고사항 없음",
        ),
    },
    DocumentKind.DIAGNOSIS: {
        "en": (
            "ICD-10 J45.0", "Diagnosis: bronchial asthma", "I certify that the above named is unfit for work",
            "Expected recovery in two weeks",
        ),
        "de": (
            "ICD J45.0 G", "Hiermit wird bescheinigt, dass Arbeitsunfähigkeit besteht",
            "arbeitsunfähig bis auf weiteres",
        ),
        "ko": (
            "병명: 기관지 천식", "질병분류기호 J45.0", "위와 같이 진단합니다",
            "향후 치료 의견: 약 2주간의 안정",
        ),
    },
    DocumentKind.LAB_RESULT: {
        "en": (
            "Hemoglobin 13.5 g/dl 12.0-16.0", "Creatinine 0.9 mg/dl 0.5-1.1", "Reference range see right",
            "Glucose 5.4 mmol/l", "Specimen: serum", "Leukocytes 7.2",
        ),
        "de": (
            "Hämoglobin 13,5 g/dl", "Referenzbereich 12-16", "Leukozyten 7,2", "Material: Serum",
            "Glucose 98 mg/dl",
        ),
        "ko": (
            "혈색소 13.5 g/dl 참고치 12-16", "검체: 혈청", "검사명 결과치 단위", "크레아티닌 0.9 mg/dl",
            "포도당 98 mg/dl",
        ),
    },
    DocumentKind.CHART: {
        "en": (
            "08:15 BP 120/80, pulse 72, observations stable", "Subjective: slept well", "Objective: afebrile",
            "Assessment: improving", "14:30 nurse handover, vitals taken",
        ),
        "de": ("08:15 Blutdruck 120/80, Puls 72", "14:30 Visite, Zustand stabil", "22:00 schläft ruhig"),
        "ko": (
            "08:15 혈압 120/80 맥박 72 체온 36.5", "활력징후 안정적임", "주호소: 복통",
            "14:30 간호사 순회, 통증 호소 없음",
        ),
    },
    DocumentKind.LETTER: {
        "en": (
            "Thank you for referring this pleasant patient", "There was no evidence of cardiac disease.",
            "Earlier report of 03.02.2019 was reviewed.", "We recommend follow-up in six weeks.",
        ),
        "de": (
            "wir berichten über die Behandlung in unserer Klinik.", "Mit kollegialen Empfehlungen",
            "Der Befund vom 03.02.2019 lag vor.",
        ),
        "ko": (
            "상기 환자를 의뢰드립니다", "고진선처 부탁드립니다 감사합니다",
            "2019년 2월 3일 검사 결과를 참고하였습니다", "추적 관찰이 필요합니다",
        ),
    },
    DocumentKind.INVOICE: {
        "en": (
            "Consultation quantity 1 unit price 80.00", "Subtotal 80.00",
            "Payment by bank transfer, IBAN GB00 1234", "VAT 0 %", "Amount due 80.00",
        ),
        "de": (
            "Beratung Ziffer 1 Betrag 10,72", "Gesamtbetrag 80,00 €",
            "zahlbar innerhalb von 14 Tagen IBAN DE00",
        ),
        "ko": (
            "진찰료 15,000원", "본인부담금 5,000원 공단부담금 10,000원", "납부할 금액 합계 5,000원",
            "수납 완료",
        ),
    },
    DocumentKind.CONSENT: {
        "en": (
            "I hereby consent to the procedure described", "The risks have been explained to me",
            "I understand that I may withdraw", "Signature of patient ________",
        ),
        "de": (
            "Ich willige ein in den Eingriff", "Über die Risiken wurde ich aufgeklärt",
            "Ein Widerruf ist möglich",
        ),
        "ko": (
            "본인은 수술에 대한 설명을 듣고 동의합니다", "발생 가능한 합병증에 대해 이해하였습니다",
            "자필 서명: ________",
        ),
    },
}  # fmt: skip
_PROSE: Final = {
    "en": (
        "The course was uneventful and there were no complications.", "Findings were discussed at length.",
        "and the dose was left unchanged", "Further notes are kept on file.",
    ),
    "de": (
        "Der Verlauf war komplikationslos.", "Weitere Angaben liegen nicht vor.",
        "und wurde wie geplant fortgesetzt",
    ),
    "ko": ("특이 소견 없이 경과 양호함", "추가 사항은 별도로 기재함", "기타 특이사항 없음"),
}  # fmt: skip
_OTHERS: Final = {
    "en": (
        "Referring physician: Dr. Helen Ward", "Emergency contact: Peter Walker, phone 0171 2345678",
        "Mother: Eva Brown, born 02.03.1935",
    ),
    "de": (
        "Hausarzt: Dr. Karl Lange", "Angehörige: Eva Koch, Tel. 0171 2345678",
        "Mutter: Eva Koch, geb. 02.03.1935",
    ),
    "ko": ("담당의사: 이영희", "보호자 성명: 박철수 (관계: 부)", "연락처 010-1234-5678"),
}  # fmt: skip
_CONFUSED: Final = dict(zip("lI1O0oS5B8üöämecir", "1l|0OO5S8Buoaoceln", strict=True))


@dataclass(frozen=True, slots=True)
class Person:
    """An invented patient."""

    language: str
    family: str
    given: str
    birth: dt.date
    record: str

    def name(self, rng: random.Random) -> str:
        if self.language == "ko":
            return self.family + self.given
        return rng.choice(
            (f"{self.given} {self.family}", f"{self.given} {self.family}", f"{self.family}, {self.given}")
        )


@dataclass(frozen=True, slots=True)
class Truth:
    """One document of a bundle."""

    pages: tuple[int, ...]
    kind: DocumentKind
    patient: Person
    tells: bool
    """Whether a person can see that it begins where it does."""


@dataclass(slots=True)
class Bundle:
    """Pages, and the documents that they are."""

    pages: list[Page] = field(default_factory=list)
    documents: list[Truth] = field(default_factory=list)
    separators: list[int] = field(default_factory=list)


def drawn_bundle(seed: int, *, noise: float = 0.002) -> Bundle:
    """Draw a bundle of 2 to 6 documents, the same one every time."""
    rng = random.Random(f"bundle {seed}")  # noqa: S311  the same bundles every time
    bundle = Bundle()
    people = _people(rng)
    duplex, sheets = rng.random() < 0.2, rng.random() < 0.1
    before: tuple[Person, tuple[int, int]] | None = None
    for number in range(rng.randint(2, 6)):
        person, kind = rng.choice(people), rng.choice(list(_TITLES))
        if sheets and number:
            bundle.separators.append(len(bundle.pages) + 1)
            sheet = rng.choice((["SEPARATOR"], ["Trennblatt"], []))
            code = (
                [Block(kind=BlockKind.BARCODE, text="PECIA-SEPARATOR", source=Source.OCR)]
                if not sheet
                else []
            )
            bundle.pages.append(_page(rng, len(bundle.pages) + 1, sheet, (1240, 1754), 0, code))
        size = rng.choice(((1240, 1754), (1240, 1754), (1275, 1650), (1654, 2339)))
        house, has_head, titled = (
            rng.choice(_HOUSES[person.language]),
            rng.random() < 0.85,
            rng.random() < 0.85,
        )
        numbered = rng.random() < 0.5
        coded = rng.random() < 0.1  # by an archive's label on each page
        codes = [
            Block(kind=BlockKind.BARCODE, text=f"DOC-{rng.randint(1000, 9999)}", source=Source.OCR)
        ] * coded
        tells = bool(
            not number or coded or sheets or has_head or titled or numbered or before != (person, size)
        )
        pages = list(_document(rng, person, kind, house, has_head, titled, numbered))
        start = len(bundle.pages) + 1
        for lines in pages:
            bundle.pages.append(_page(rng, len(bundle.pages) + 1, lines, size, noise, codes))
            if duplex and lines is pages[-1] and rng.random() < 0.7:
                bundle.pages.append(_page(rng, len(bundle.pages) + 1, [], size, 0))
        bundle.documents.append(Truth(tuple(range(start, len(bundle.pages) + 1)), kind, person, tells))
        before = (person, size)
    return bundle


def _people(rng: random.Random) -> list[Person]:
    """Return three patients, the second a twin of the first or one with a near name in half of the bundles."""
    language = rng.choice(("en", "en", "ko", "ko", "de"))
    people = [_person(rng, language) for _ in range(3)]
    first = people[0]
    if rng.random() < 0.5:
        near = [name for name in _GIVEN[language] if name != first.given and name[:1] == first.given[:1]]
        birth = first.birth if rng.random() < 0.7 else people[1].birth
        record = str(int(first.record) + 1) if rng.random() < 0.5 else people[1].record
        people[1] = Person(language, first.family, rng.choice(near or _GIVEN[language][-2:]), birth, record)
    return people


def _person(rng: random.Random, language: str) -> Person:
    birth = dt.date(rng.randint(1930, 2015), rng.randint(1, 12), rng.randint(1, 28))
    return Person(
        language,
        rng.choice(_FAMILY[language]),
        rng.choice(_GIVEN[language]),
        birth,
        str(rng.randint(10**6, 10**8)),
    )


def _document(  # noqa: PLR0917  all that a document is drawn by
    rng: random.Random,
    person: Person,
    kind: DocumentKind,
    house: str,
    has_head: bool,
    titled: bool,
    numbered: bool,
) -> Iterator[list[str]]:
    """Yield the lines of its pages."""
    language = person.language
    count = rng.choice((1, 1, 2, 2, 3, 4))
    tel = {"en": "Tel. 020 7946 0", "de": "Tel. 030 4567 0", "ko": "전화 02-345-6"}[language]
    head = [f"{house}, {tel}{rng.randint(100, 999)}"] if has_head else []
    running, names_pages = rng.random() < 0.5, rng.choice((0, 0, 1, 2))
    title = [rng.choice(_TITLES[kind][language])] if titled else []
    date = dt.date(rng.randint(2020, 2025), rng.randint(1, 12), rng.randint(1, 28))
    for number in range(1, count + 1):
        lines = list(head) if number == 1 or running else []
        if number == 1:
            lines += title
            if kind is DocumentKind.LETTER and language != "ko":
                lines.append({"en": "Dear Dr. Ward,", "de": "Sehr geehrte Frau Kollegin,"}[language])
            if rng.random() < 0.97 or not (has_head and title):
                lines += _block(rng, person)
        elif names_pages:
            lines.append(_short(rng, person, names_pages))
        if rng.random() < (0.8 if number == 1 else 0.5 if kind is DocumentKind.CHART else 0.1):
            shown = date + dt.timedelta(days=number - 1) if kind is DocumentKind.CHART else date
            labels = {
                "en": f"Date: {shown:%d.%m.%Y}",
                "de": f"Datum: {shown:%d.%m.%Y}",
                "ko": f"발행일: {shown:%Y-%m-%d}",
            }
            lines.append(labels[language])
        body = list(_BODY[kind][language])
        lines += rng.sample(body, max(2, len(body) - (number > 1)))
        lines += rng.choices(_PROSE[language], k=rng.randint(1, 6))
        if number == 1 and rng.random() < 0.5:
            lines.append(rng.choice(_OTHERS[language]))
        if numbered:
            shapes = {"en": "Page {} of {}", "de": "Seite {} von {}", "ko": "{} / {} 페이지"}
            lines.append("\f" + rng.choice((shapes[language], "{} / {}", "{}/{}")).format(number, count))
        yield lines


def _born(rng: random.Random, person: Person) -> str:
    if person.language == "ko":
        return rng.choice(
            (
                f"{person.birth:%Y-%m-%d}",
                f"{person.birth:%Y.%m.%d}",
                f"{person.birth.year}년 {person.birth.month}월 {person.birth.day}일",
            )
        )
    return rng.choice(
        (
            f"{person.birth:%d.%m.%Y}",
            f"{person.birth:%Y-%m-%d}",
            f"{person.birth:%d %B %Y}" if person.language == "en" else f"{person.birth:%d.%m.%Y}",
        )
    )


def _block(rng: random.Random, person: Person) -> list[str]:
    name, born, record = person.name(rng), _born(rng, person), person.record
    forms = {
        "en": (
            [f"Patient Name: {name}", f"Date of Birth: {born}", f"MRN: {record}"],
            [f"Name: {name}  DOB: {born}  MRN: {record}"],
            [f"Patient: {name}, born {born}"],
            [f"{name}  *{born}"],
            ["Patient Name", name, f"DOB {born}"],
            [f"Re: Mrs {name}, born {born}, MRN {record}"],
        ),
        "de": (
            [f"Name: {name}", f"Geburtsdatum: {born}", f"Patienten-Nr.: {record}"],
            [f"{name}, geb. {born}"],
            [f"Patient: {name}  geb. am {born}  Pat.-Nr. {record}"],
            [f"{name}  *{born}"],
        ),
        "ko": (
            [f"성명: {name}", f"생년월일: {born}", f"등록번호: {record}"],
            [f"환자성명: {name}  생년월일: {born}  등록번호: {record}"],
            [f"환자명 {name}", f"등록번호 {record}"],
            [f"성 명 {name} (남)  생년월일 {born}"],
        ),
    }
    return rng.choice(forms[person.language])


def _short(rng: random.Random, person: Person, form: int) -> str:
    name, born, record = person.name(rng), _born(rng, person), person.record
    label = {
        "en": ("MRN", "DOB", "Name"),
        "de": ("Pat.-Nr.", "geb.", "Name"),
        "ko": ("등록번호", "생년월일", "성명"),
    }[person.language]
    return f"{name} | {label[0]} {record}" if form == 1 else f"{label[2]}: {name}  {label[1]} {born}"


def _noisy(rng: random.Random, text: str, noise: float) -> str:
    if rng.random() > 1 - (1 - noise) ** len(text):
        return text
    place = rng.randrange(len(text))
    sign = text[place]
    other = (
        _CONFUSED.get(sign)
        if rng.random() < 0.7
        else rng.choice("aeioutnr")
        if sign.isalpha() and sign.isascii()
        else sign
    )
    return f"{text[:place]}{other or sign}{text[place + 1 :]}"


def _page(  # noqa: PLR0917  as above
    rng: random.Random,
    number: int,
    texts: Sequence[str],
    size: tuple[int, int],
    noise: float,
    more: Sequence[Block] = (),
) -> Page:
    width, height = size
    lines, top = [], round(0.05 * height)
    for text in texts:
        is_foot = text.startswith("\f")
        y = round(0.95 * height) if is_foot else top
        written = _noisy(rng, text.strip("\f"), noise)
        box = Box(left=80, top=y, right=80 + 11 * len(written), bottom=y + 24)
        lines.append(Line(text=written, box=box))
        top += 40
    text = "\n".join(line.text for line in lines)
    blocks = [Block(kind=BlockKind.TEXT, text=text, lines=tuple(lines), source=Source.OCR)] if lines else []
    if len(lines) > 3 and ":" in lines[2].text and lines[2].text.count(":") == 1 and rng.random() < 0.3:
        name, value = lines[2].text.split(":", 1)  # a table of what the patient is
        cells = tuple(
            Cell(row=0, column=column, text=part.strip(), box=lines[2].box)
            for column, part in enumerate((name, value))
        )
        table = Table(rows=1, columns=2, cells=cells)
        parts = (lines[:2], lines[3:])
        above, below = (
            Block(
                kind=BlockKind.TEXT,
                text="\n".join(line.text for line in part),
                lines=tuple(part),
                source=Source.OCR,
            )
            for part in parts
        )
        blocks = [
            above,
            Block(kind=BlockKind.TABLE, text=table.text, table=table, box=lines[2].box, source=Source.OCR),
            below,
        ]
    verdict = Verdict.OK if lines or more else Verdict.BLANK
    return Page(
        number=number,
        blocks=(*blocks, *more),
        verdict=verdict,
        width=width,
        height=height,
        blank=not (lines or more),
        engine="drawn",
    )


def fitted(seeds: Sequence[int], *, steps: int = 60, ridge: float = 0.0003) -> dict[str, float]:
    """Return weights that make the true cuts of these bundles likely: logistic regression with a small penalty."""
    import numpy as np  # noqa: PLC0415

    from pecia_workers.bundles.signs import signs_of  # noqa: PLC0415
    from pecia_workers.bundles.splitting import WEIGHTS, Part, features_of, first_part  # noqa: PLC0415

    rows, truth, names = [], [], list(WEIGHTS)
    for seed in seeds:
        bundle = drawn_bundle(seed)
        starts = {document.pages[0] for document in bundle.documents}
        part: Part | None = None
        for page in map(signs_of, bundle.pages):
            if page.is_sheet:
                part = None
            elif page.blank and part:
                part.add(page)
            elif part is None:
                part = first_part(page)
            else:
                features = features_of(part, page)
                rows.append([features.get(name, 0.0) for name in names])
                truth.append(page.number in starts)
                if page.number in starts:
                    part = first_part(page)
                else:
                    part.add(page)
    table, wanted = np.array(rows), np.array(truth, dtype=float)
    weights = np.array(list(WEIGHTS.values()))
    for _ in range(steps):
        likely = 1 / (1 + np.exp(-table @ weights))
        slope = table.T @ (wanted - likely) / len(table) - ridge * weights
        curve = (table * (likely * (1 - likely))[:, None]).T @ table / len(table) + ridge * np.eye(len(names))
        weights = weights + np.linalg.solve(curve, slope)
    return {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True)}


if __name__ == "__main__":
    sys.stdout.write(
        "\n".join(f'    "{name}": {weight},' for name, weight in fitted(range(10_000, 11_500)).items()) + "\n"
    )
