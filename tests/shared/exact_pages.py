"""Drawn pages with their exact truth: text in reading order, cells, marks. What accuracy is judged by.

A page is small, so that all of them are read in seconds, and has one difficulty. People and values are invented.
"""

# ruff: noqa: RUF001  Chinese has its own comma
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pecia.evaluation.truth import TruePage, Truth
from pecia_schemas.blocks import BlockKind, Box, Cell, Line, Mark, MarkKind, MarkState, Table
from tests.shared.korean_pages import korean_pages

_DPI: Final = 150
_A5: Final = (874, 1240)
_MARGIN: Final = 70
_PRINT: Final = 20
_PROSE: Final = (
    "The patient was admitted with acute chest pain that had started two hours before arrival.",
    "The electrocardiogram showed no elevation, but troponin was raised on the second sample.",
    "Coronary angiography revealed a narrow stenosis, which was treated with one stent.",
    "The further course was without complication and the wound at the wrist healed well.",
    "We recommend double therapy for twelve months and a check of lipids after six weeks.",
    "Physical training may begin after ten days under supervision of the clinic.",
    "Blood pressure at discharge was 128/82 mmHg with a regular pulse of 72 per minute.",
    "An ultrasound of the abdomen found two small stones in an otherwise normal bladder.",
    "Renal function remained stable during the stay, creatinine was 0.98 mg/dL on day four.",
    "Please see your family doctor within one week and bring the list of your medicines.",
    "Swelling of the left ankle has decreased since compression stockings were fitted.",
    "No allergy to antibiotics is known, though penicillin caused a rash in childhood.",
)
_CHINESE: Final = (
    "患者因胸痛两小时入院，既往有高血压病史十年。",
    "心电图未见明显异常，肌钙蛋白轻度升高。",
    "冠状动脉造影显示左前降支狭窄，植入支架一枚。",
    "术后恢复顺利，伤口愈合良好，无并发症发生。",
    "建议继续服用抗血小板药物十二个月，六周后复查血脂。",
    "出院时血压 128/82 mmHg，心率每分钟 72 次。",
    "如有胸闷、气短或头晕，请立即到急诊科就诊。",
    "请一周内到门诊复诊，并携带全部用药清单。",
)


@dataclass(frozen=True, kw_only=True)
class ExactPage:
    name: str
    kind: str
    image: Image.Image
    true: TruePage
    language: str | None = None
    pieces: tuple[Line, ...] = ()
    """The text where it was drawn, as a perfect reader finds it; empty if the page was turned since."""
    blocks: tuple[tuple[BlockKind, str], ...] = ()
    """What was drawn, in reading order; of tables and stamps, which need not stand in it, nothing but the kind."""

    def write(self, folder: Path) -> None:
        """Write it and its truth as `pecia eval` takes them."""
        self.image.save(folder / f"{self.name}.png", dpi=(_DPI, _DPI))
        truth = Truth(kind=self.kind, language=self.language, pages=(self.true,))
        (folder / f"{self.name}.json").write_text(truth.model_dump_json(), "utf-8")


def english_pages() -> Iterator[ExactPage]:
    """Draw the pages that need no font but Pillow's own."""
    yield letterhead()
    yield columns("three-columns", 3, size=(1240, 874))
    yield columns("four-columns", 4, size=(3300, 1100), dpi=200, points=5)
    yield table_in_a_column()
    yield ruled_table()
    yield unruled_table()
    yield form()
    yield faint(letterhead(), ink=205)
    yield faint(unruled_table(), ink=215)
    yield turned(ruled_table(), 90)
    yield turned(columns("columns", 2), 3.5)


def blank_pages() -> Iterator[ExactPage]:
    """Draw sheets without a word: noise, dust, a shade with a fold and punched holes."""
    random = np.random.default_rng(1)
    for name, draw in (("noise", None), ("dust", _dust), ("fold", _fold)):
        sheet = Sheet()
        if draw is not None:
            draw(sheet.draw, random)
        grey = np.asarray(sheet.image, dtype=np.float32) - 15 + random.normal(0, 6, sheet.image.size[::-1])
        image = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
        yield ExactPage(name=f"blank-{name}", kind="blank", image=image, true=TruePage(text=""))


def chinese_pages(font: Path) -> Iterator[ExactPage]:
    sheet = Sheet(font=font)
    sheet.title("出院小结")
    sheet.columns([_CHINESE[:4], _CHINESE[4:]])
    yield sheet.page("chinese-columns", "chinese", language="zh")
    sheet = Sheet(font=font)
    sheet.title("检验报告单")
    rows = [["项目", "结果", "单位", "参考值"], ["血红蛋白", "132", "g/L", "120-155"]]
    rows += [["白细胞", "11.8", "10/L", "4.0-10.0"], ["血钾", "", "mmol/L", "3.5-5.1"]]
    sheet.table(rows, (200, 150, 150, 200), ruled=True)
    sheet.paragraph(_CHINESE[1])
    yield sheet.page("chinese-table", "chinese", language="zh")


class Sheet:
    """A page that is being drawn, and its truth."""

    def __init__(
        self, size: tuple[int, int] = _A5, *, dpi: int = _DPI, points: float = 10, font: Path | None = None
    ) -> None:
        self.image = Image.new("L", size, 255)
        self.draw = ImageDraw.Draw(self.image)
        self.y = _MARGIN
        self._height = points * dpi / 72
        self._font_file = font
        self.font = self._font(self._height)
        self.pitch = round(self._height * 1.5)
        self._lines: list[str] = []
        self._tables: list[Table] = []
        self._marks: list[Mark] = []
        self._pieces: list[Line] = []
        self._blocks: list[tuple[BlockKind, str]] = []

    def title(self, text: str) -> None:
        """Write a line in large letters across the sheet."""
        font = self._font(1.5 * self._height)
        self.put(text, (self.image.width - font.getlength(text)) / 2, font=font)
        self._lines.append(text)
        self._blocks.append((BlockKind.TITLE, text))
        self.y += 2 * self.pitch

    def line(self, text: str) -> None:
        self.put(text, _MARGIN)
        self._lines.append(text)
        self._blocks.append((BlockKind.TEXT, text))
        self.y += self.pitch

    def paragraph(self, text: str, left: int = _MARGIN, width: int = 0) -> None:
        """Write a text in as many lines as it takes."""
        lines = list(self._wrapped(text, width or self.image.width - 2 * _MARGIN))
        for line in lines:
            self.put(line, left)
            self._lines.append(line)
            self.y += self.pitch
        self._blocks.append((BlockKind.TEXT, "\n".join(lines)))
        self.y += self.pitch // 3

    def columns(self, texts: Sequence[Sequence[str]]) -> None:
        """Write columns of paragraphs side by side, each to be read from its top to its end."""
        gutter = 2 * self.pitch
        width = (self.image.width - 2 * _MARGIN - gutter * (len(texts) - 1)) // len(texts)
        top, ends = self.y, []
        for number, paragraphs in enumerate(texts):
            self.y, first = top, len(self._blocks)
            for paragraph in paragraphs:
                self.paragraph(paragraph, _MARGIN + number * (width + gutter), width)
            drawn = [text for _, text in self._blocks[first:]]
            if not any("\n" in text for text in drawn):  # nothing tells such lines apart
                self._blocks[first:] = [(BlockKind.TEXT, "\n".join(drawn))]
            ends.append(self.y)
        self.y = max(ends)

    def table(
        self,
        rows: Sequence[Sequence[str]],
        widths: Sequence[int],
        *,
        ruled: bool,
        spans: dict[tuple[int, int], tuple[int, int]] | None = None,
        left: int = _MARGIN,
    ) -> None:
        """Draw a table. `spans`: rows and columns of the cells that take more than one; what they cover is left out."""
        spans = spans or {}
        covered = {
            (top + down, first + right)
            for (top, first), (height, width) in spans.items()
            for down in range(height)
            for right in range(width)
        } - spans.keys()
        lefts = [left + sum(widths[:column]) for column in range(len(widths) + 1)]
        tops = [self.y]
        for texts in rows:
            tops.append(tops[-1] + self.pitch * max(text.count("\n") + 1 for text in texts) + self.pitch // 2)
        cells = []
        for row, column in product(range(len(rows)), range(len(widths))):
            if (row, column) in covered:
                continue
            height, width = spans.get((row, column), (1, 1))
            text = rows[row][column]
            cells.append(Cell(row=row, column=column, row_span=height, column_span=width, text=text))
            box = (lefts[column], tops[row], lefts[column + width], tops[row + height])
            self._cell(text, box, ruled=ruled)
        self._blocks.append((BlockKind.TABLE, ""))
        self._tables.append(Table(rows=len(rows), columns=len(widths), cells=tuple(cells)))
        self._lines += [" ".join(filter(None, texts)).replace("\n", " ") for texts in rows]
        self.y = tops[-1] + self.pitch

    def _cell(self, text: str, box: tuple[int, int, int, int], *, ruled: bool) -> None:
        if ruled:
            self.draw.rectangle(box, outline=_PRINT, width=2)
        self.y = box[1] + self.pitch // 4
        for line in text.split("\n"):
            self.put(line, box[0] + 10)
            self.y += self.pitch

    def option(self, label: str, left: int, *, ticked: bool, radio: bool = False) -> str:
        """Draw a box or a circle with its label, on this line; return what is read of it."""
        side = round(self._height)
        box = (left, self.y + 2, left + side, self.y + 2 + side)
        if radio:
            self.draw.ellipse(box, outline=_PRINT, width=2)
        else:
            self.draw.rectangle(box, outline=_PRINT, width=2)
        if ticked and radio:
            self.draw.ellipse((box[0] + 6, box[1] + 6, box[2] - 6, box[3] - 6), fill=_PRINT)
        elif ticked:
            self.draw.line((box[0] + 3, box[1] + 3, box[2] - 3, box[3] - 3), fill=_PRINT, width=3)
            self.draw.line((box[0] + 3, box[3] - 3, box[2] - 3, box[1] + 3), fill=_PRINT, width=3)
        self.put(label, left + side + 10)
        self._marks.append(
            Mark(
                kind=MarkKind.RADIO if radio else MarkKind.CHECKBOX,
                box=Box(left=box[0], top=box[1], right=box[2], bottom=box[3]),
                state=MarkState.TICKED if ticked else MarkState.EMPTY,
                label=label,
            )
        )
        return f"{'☑' if ticked else '☐'} {label}"

    def options(self, *labels: tuple[str, bool], radio: bool = False) -> None:
        """Draw options side by side, as one line."""
        pitch = (self.image.width - 2 * _MARGIN) // 3
        read = [
            self.option(label, _MARGIN + number * pitch, ticked=ticked, radio=radio)
            for number, (label, ticked) in enumerate(labels)
        ]
        self._lines.append(" ".join(read))
        if self._blocks[-1][0] is BlockKind.LIST:
            read = [self._blocks.pop()[1], *read]
        self._blocks.append((BlockKind.LIST, " ".join(read)))
        self.y += round(1.6 * self.pitch)

    def stamp(self, text: str, left: int, top: int) -> None:
        """Press a framed stamp, slightly aslant, where nothing else stands."""
        width = round(self.font.getlength(text)) + 40
        stamp = Image.new("L", (width, 2 * self.pitch), 255)
        pen = ImageDraw.Draw(stamp)
        pen.rectangle((2, 2, width - 3, 2 * self.pitch - 3), outline=110, width=4)
        pen.text((20, self.pitch // 2), text, fill=110, font=self.font)
        aslant = stamp.rotate(4, expand=True, fillcolor=255, resample=Image.Resampling.BICUBIC)
        self.image.paste(aslant, (left, top))
        self._lines.append(text)
        box = Box(
            left=left + 20, top=top + self.pitch // 2, right=left + width - 20, bottom=top + 2 * self.pitch
        )
        self._pieces.append(Line(text=text, box=box))
        self._blocks.append((BlockKind.STAMP, ""))

    def put(self, text: str, left: float, font: ImageFont.FreeTypeFont | None = None) -> None:
        """Write at this height; it is not part of the truth yet."""
        font = font or self.font
        self.draw.text((left, self.y), text, fill=_PRINT, font=font)
        if text:
            x0, y0, x1, y1 = map(round, font.getbbox(text))
            at = round(left)
            box = Box(left=at + x0, top=self.y + y0 - 2, right=at + x1, bottom=self.y + y1 + 2)
            self._pieces.append(Line(text=text, box=box))

    def page(self, name: str, kind: str = "", *, language: str | None = None) -> ExactPage:
        true = TruePage(text="\n".join(self._lines), tables=tuple(self._tables), marks=tuple(self._marks))
        return ExactPage(
            name=name,
            kind=kind or name,
            image=self.image,
            true=true,
            language=language,
            pieces=tuple(self._pieces),
            blocks=tuple(self._blocks),
        )

    def _font(self, height: float) -> ImageFont.FreeTypeFont:
        if self._font_file is not None:
            return ImageFont.truetype(self._font_file, height)
        font = ImageFont.load_default(height)
        assert isinstance(font, ImageFont.FreeTypeFont)
        return font

    def _wrapped(self, text: str, width: float) -> Iterator[str]:
        glue = " " if text.isascii() else ""
        pieces = text.split() if text.isascii() else re.findall("[ -~]+|.", text)
        line = ""
        for piece in pieces:
            longer = f"{line}{glue}{piece}" if line else piece
            if line and self.font.getlength(longer) > width:
                yield line.rstrip()
                longer = piece.lstrip()
            line = longer
        yield line


def letterhead() -> ExactPage:
    """A letterhead, an address beside its contacts, a subject, and two columns below."""
    sheet = Sheet()
    sheet.title("University Heart Centre")
    sheet.line("Department of Cardiology - Lindenweg 14 - 79100 Freiburg")
    sheet.y += sheet.pitch
    sheet.columns(
        [("Dr. Helena Vogt", "Marktplatz 3", "79312 Emmendingen"), ("Phone 0761 55 210", "14.03.2026")]
    )
    sheet.y += sheet.pitch
    sheet.line("Discharge letter for Mr. Anton Weiss, born 02.02.1954")
    sheet.y += sheet.pitch // 2
    sheet.columns([_PROSE[:6], _PROSE[6:]])
    return sheet.page("letterhead")


def columns(
    name: str, count: int, *, size: tuple[int, int] = _A5, dpi: int = _DPI, points: float = 9
) -> ExactPage:
    """Columns of prose below a title."""
    sheet = Sheet(size, dpi=dpi, points=points)
    sheet.title("Package leaflet: information for the user")
    each = len(_PROSE) // count
    sheet.columns([_PROSE[number * each : (number + 1) * each] for number in range(count)])
    return sheet.page(name, "columns")


def table_in_a_column() -> ExactPage:
    """Two columns, with a ruled table in the middle of the first."""
    sheet = Sheet((1240, 1000), points=9)
    sheet.title("Follow-up after discharge")
    top, width, gutter = sheet.y, 530, 40
    sheet.paragraph(_PROSE[0], width=width)
    sheet.table(
        [["Drug", "Dose", "Morning", "Night"], ["Ramipril", "5 mg", "1", ""], ["Ferrous", "100 mg", "", "1"]],
        (160, 120, 120, 100),
        ruled=True,
    )
    for text in _PROSE[1:5]:
        sheet.paragraph(text, width=width)
    sheet.y = top
    for text in _PROSE[5:]:
        sheet.paragraph(text, _MARGIN + width + gutter, width)
    return sheet.page("table-in-a-column")


def ruled_table() -> ExactPage:
    """A ruled table with spans, empty cells and cells of two lines, and a stamp below."""
    sheet = Sheet((1240, 874))
    sheet.title("Vital signs, ward 4B")
    rows = [
        ["Parameter", "Morning", "", "Evening", "", "Note"],
        ["", "Day 1", "Day 2", "Day 1", "Day 2", ""],
        ["Pulse", "72", "75", "81", "79", "regular,\nno pause"],
        ["Pressure", "128/82", "", "131/84", "126/80", ""],
        ["Temperature", "36.8", "36.9", "37.4", "37.0", "after a walk\nin the garden"],
        ["Weight", "81.4", "", "", "81.1", ""],
    ]
    spans = {(0, 0): (2, 1), (0, 1): (1, 2), (0, 3): (1, 2), (0, 5): (2, 1)}
    sheet.table(rows, (220, 160, 160, 160, 160, 230), ruled=True, spans=spans)
    sheet.line("Values entered by the night shift are in the log book.")
    sheet.stamp("COPY FOR THE WARD", 800, sheet.y + 20)
    return sheet.page("ruled-table")


def unruled_table() -> ExactPage:
    """Results in columns without a rule, some of them empty."""
    sheet = Sheet((1240, 874))
    sheet.title("St. Anna Hospital Laboratory")
    sheet.line("Patient: Maria Keller, born 04.05.1961")
    sheet.y += sheet.pitch
    rows = [
        ["Test", "Result", "Unit", "Reference", "Flag", "Previous"],
        ["Haemoglobin", "13.2", "g/dL", "12.0 - 15.5", "", "13.0"],
        ["Sodium", "139", "mmol/L", "135 - 145", "", "141"],
        ["Potassium", "", "mmol/L", "3.5 - 5.1", "", "4.4"],
        ["Creatinine", "1.21", "mg/dL", "0.50 - 0.90", "High", "0.98"],
        ["Ferritin", "", "ng/mL", "15 - 150", "", ""],
        ["Cholesterol,\ntotal", "212", "mg/dL", "0 - 200", "High", "198"],
    ]
    sheet.table(rows, (230, 140, 160, 230, 130, 150), ruled=False)
    sheet.line("Comment: please repeat in two weeks.")
    return sheet.page("unruled-table")


def form() -> ExactPage:
    """Boxes and circles, ticked and empty, with their labels."""
    sheet = Sheet()
    sheet.title("Patient questionnaire")
    sheet.line("Which complaints do you have?")
    sheet.options(("Cough", True), ("Fever", False), ("Nausea", False))
    sheet.options(("Headache", False), ("Back pain", True), ("Dizziness", True))
    sheet.line("How often do you smoke?")
    sheet.options(("Never", False), ("Sometimes", True), ("Daily", False), radio=True)
    sheet.line("Do you agree to the storage of your data?")
    sheet.options(("Yes, I agree", True), ("No", False), radio=True)
    return sheet.page("form")


def faint(page: ExactPage, ink: int) -> ExactPage:
    """The page as a pale copy on grey paper: `ink` of 240, with some noise."""
    grey = np.asarray(page.image, dtype=np.float32)
    noise = np.random.default_rng(ink).normal(0, 2, grey.shape)
    pale = ink + (grey - _PRINT) * (240 - ink) / (255 - _PRINT) + noise
    image = Image.fromarray(pale.clip(0, 255).astype(np.uint8))
    return replace(page, name=f"faint-{ink}", kind="faint", image=image)


def turned(page: ExactPage, degrees: float) -> ExactPage:
    """The page as it was laid on the glass, clockwise."""
    lying = page.image.rotate(-degrees, expand=True, fillcolor=255, resample=Image.Resampling.BICUBIC)
    return replace(page, name=f"turned-{degrees:g}", kind="turned", image=lying, pieces=())


def korean_page(font: Path) -> ExactPage:
    drawn = next(page for page in korean_pages(font) if page.name == "two columns")
    true = TruePage(text=drawn.text)
    return ExactPage(
        name="korean-columns", kind="korean", image=Image.fromarray(drawn.pixels), true=true, language="ko"
    )


def _dust(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for x, y in random.integers(0, _A5[0], (40, 2)):
        draw.ellipse((int(x), int(y), int(x) + 3, int(y) + 3), fill=140)


def _fold(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    y = int(random.integers(500, 700))
    draw.line((0, y, _A5[0], y - 6), fill=215, width=3)
    for hole in (300, 900):
        draw.ellipse((22, hole, 62, hole + 40), fill=60)
