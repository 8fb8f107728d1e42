"""Results as text, Markdown, JSON, hOCR and subtitles: whatever was read is read back by the parsers of each."""

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pecia import errors
from pecia.formats import Format, facsimile, render
from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Line, Source, Table, Word, plain_blocks
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import NoPictureError, Picture
from pecia_schemas.rendering import markdown_of
from pecia_schemas.results import Captions, Document, Page, PageFailure, SegmentFailure, Summary, Verdict
from tests.shared.samples import page as sample_page
from tests.shared.samples import segment

XHTML = "{http://www.w3.org/1999/xhtml}"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
HOSTILE = st.lists(
    st.sampled_from(
        ["-->", "--->", "<b>", "&amp;", "\n", "\r", "\n\n", "<", "1\n", "00:00", "{\\an8}", "가", " ", "x"]
    ),
    max_size=8,
).map("".join)
SIGNS = (*"#*_`~|<>&[]()!+-=\\\n. 12a", "- ", "    ")
MARKUP = ("**", "```", "1.", "---", "<b>", "&lt;", "http://x.y", "혈압")
PLAIN = st.lists(st.sampled_from((*SIGNS, *MARKUP)), max_size=30).map("".join)


def page(number: int = 1, text: str = "", lines: tuple[Line, ...] = (), **more: Any) -> Page:
    return sample_page(number, **{"blocks": plain_blocks(text, lines), **more})


def line(text: str, top: int = 10, confidence: float = 0.9) -> Line:
    return Line(text=text, box=Box(left=20, top=top, right=400, bottom=top + 30), confidence=confidence)


def damaged(number: int) -> PageFailure:
    return PageFailure(number=number, failure=Failure.of(FailureCode.DAMAGED))


PARTIAL = Document(pages=(page(1, "one"), page(3, "three")), failed=(damaged(2),))
FILM = Captions(
    segments=(segment(1, "A man walks.", 0, 29.9996), segment(3, "He sits.", 60, 3661.25)),
    failed=(SegmentFailure(number=2, failure=Failure.of(FailureCode.TIMEOUT)),),
    summary=Summary(text="A man walks, then sits.", verdict=Verdict.OK, engine="test"),
)


def test_pages_and_segments_are_kept_apart_and_what_is_missing_is_said() -> None:
    assert render(PARTIAL, "text") == "one\n\f[Page 2 is missing: damaged.]\n\fthree\n"
    assert render(FILM, "text") == (
        "[0:00:00 - 0:00:30]\nA man walks.\n\n[Segment 2 is missing: timeout.]\n\n"
        "[0:01:00 - 1:01:01]\nHe sits.\n\n[summary]\nA man walks, then sits.\n"
    )
    assert render(PARTIAL, "markdown") == (
        "<!-- page 1: ok -->\n\none\n\n---\n\n<!-- page 2 -->\n\n> Page 2 is missing: damaged.\n"
        "\n---\n\n<!-- page 3: ok -->\n\nthree\n"
    )
    assert Captions.model_validate_json(render(FILM, "json")) == FILM


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_text_has_as_many_pages_as_the_document(texts: list[str]) -> None:
    document = Document(pages=tuple(page(number, text) for number, text in enumerate(texts, 1)))
    assert [one.removesuffix("\n") for one in render(document, "text").split("\f")] == [
        text.replace("\f", "\n").removesuffix("\n") for text in texts
    ]


@given(TEXTS)
def test_json_is_the_whole_result(text: str) -> None:
    document = Document(pages=(page(1, text, (line(text),), fields={"drug": text}),), failed=(damaged(2),))
    assert Document.model_validate_json(render(document, Format.JSON)) == document


def test_fields_are_a_line_for_each_page() -> None:
    document = Document(pages=(page(1, fields={"drug": "Ibu\u2028profen"}), page(3)), failed=(damaged(2),))
    assert [json.loads(one) for one in render(document, "fields").split("\n")[:-1]] == [
        {"page": 1, "fields": {"drug": "Ibu\u2028profen"}, "verdict": "ok"},
        {"page": 2, "fields": None, "failure": "damaged"},
        {"page": 3, "fields": None, "verdict": "ok"},
    ]


def spoken(tokens: list[Token]) -> Iterator[str]:
    """Yield what a reader sees of Markdown that was parsed; markup that is no plain paragraph is told by its name."""
    for token in tokens:
        if token.type == "inline":
            shown = {"softbreak": "\n", "hardbreak": "\n"}
            for child in token.children or ():
                yield child.content if child.type == "text" else shown.get(child.type, child.type)
        elif token.type == "paragraph_close":
            yield "\n\n"
        elif token.type not in ("paragraph_open", "html_block"):
            yield f"<{token.type}>"


def words_of(text: str) -> list[str]:
    return [" ".join(one.split()) for one in re.split(r"[\n\r\v\f]", text) if one.strip()]


@given(PLAIN | TEXTS)
@example("__init__ and a __ blank_, snake_case")
def test_plain_text_means_itself_in_markdown(text: str) -> None:
    document = Document(pages=(page(1, text, (line("x"),)),))
    seen = "".join(spoken(MarkdownIt("commonmark").parse(render(document, "markdown"))))
    assert words_of(seen) == words_of(text)


TABLE = Table(
    rows=2,
    columns=3,
    cells=(
        Cell(row=0, column=0, column_span=2, text="Test | *x*"),
        Cell(row=0, column=2, text="a\n<b>"),
        Cell(row=1, column=0, text="K"),
        Cell(row=1, column=1, text=""),
        Cell(row=1, column=2, text="5.1"),
    ),
)


def block(kind: BlockKind, text: str, **more: Any) -> Block:
    return Block(kind=kind, text=text, source=Source.MODEL, **more)


@given(PLAIN | TEXTS)
@example("Room #")
@example("a ##")
@example("#")
def test_a_headings_text_means_itself_in_markdown(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(markdown_of([block(BlockKind.HEADING, text)]))
    assert "".join(spoken([token for token in tokens if token.type == "inline"])) == " ".join(text.split())


RICH = Document(
    pages=(
        page(
            blocks=(
                block(BlockKind.TITLE, "Report\n#1"),
                block(BlockKind.HEADING, "Findings", level=3),
                block(BlockKind.LIST, "1. first\n  - in*n*er\nof two lines\n• <last>"),
                block(BlockKind.TABLE, TABLE.text, table=TABLE),
                block(BlockKind.PAGE_NUMBER, "1 of 2"),
            )
        ),
    )
)


def test_markdown_has_headings_lists_and_tables() -> None:
    assert RICH.markdown.split("\n") == [
        "# Report #1",
        "",
        "### Findings",
        "",
        "1. first",
        "  - in\\*n\\*er",
        "  of two lines",
        "- \\<last>",
        "",
        "| Test \\| \\*x\\* |  | a<br>\\<b> |",
        "| --- | --- | --- |",
        "| K |  | 5.1 |",
        "",
        "1 of 2",
    ]


def test_html_has_the_elements_of_its_blocks_and_spans_in_tables() -> None:
    assert RICH.html.split("\n") == [
        '<section id="page_1">',
        '<h1 class="title">Report<br>#1</h1>',
        '<h3 class="heading">Findings</h3>',
        '<ul class="list"><li>1. first</li><li>  - in*n*er</li><li>of two lines</li><li>• &lt;last&gt;</li></ul>',
        "<table>",
        '<tr><td colspan="2">Test | *x*</td><td>a<br>&lt;b&gt;</td></tr>',
        "<tr><td>K</td><td></td><td>5.1</td></tr>",
        "</table>",
        '<footer class="page_number">1 of 2</footer>',
        "</section>",
    ]
    missing = '<section id="page_2" class="missing">\n<p>Page 2 is missing: damaged.</p>'
    assert missing in render(PARTIAL, "html")


def test_csv_has_all_tables_with_an_empty_line_between() -> None:
    both = Document(pages=(RICH.pages[0], RICH.pages[0]))
    table = [["Test | *x*", "", "a\n<b>"], ["K", "", "5.1"]]
    assert list(csv.reader(io.StringIO(render(both, "csv"), newline=""))) == [*table, [], *table]


# hOCR


def parsed(document: Document) -> ET.Element:
    return ET.fromstring(render(document, "hocr"))  # noqa: S314  our own


def of_class(tree: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in tree.iter() if element.get("class") == name]


def storable_in_xml(text: str) -> str:
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", text)


@given(st.lists(TEXTS, min_size=1, max_size=3), TEXTS.filter(bool))
@example([" "], "-")
def test_any_text_survives_hocr(lines: list[str], paragraph: str) -> None:
    first = page(1, "\n".join(lines), tuple(line(text) for text in lines))
    tree = parsed(Document(pages=(first, page(2, paragraph))))
    assert [one.text or "" for one in of_class(tree, "ocr_line")] == [storable_in_xml(text) for text in lines]
    assert [one.text for one in of_class(tree, "ocr_par text")] == [storable_in_xml(paragraph)]


def test_hocr_says_where_words_stand_in_areas_of_their_kind() -> None:
    words = tuple(
        Word(text=text, box=Box(left=left, top=50, right=left + 30, bottom=80), confidence=0.5)
        for text, left in (("고혈압", 20), ("약", 60), ("5", 100))
    )
    found = Line(text="고혈압약 5", box=words[0].box, words=words)
    area = Box(left=1, top=2, right=3, bottom=4)
    table = Block(kind=BlockKind.TABLE, box=area, text=found.text, lines=(found,), source=Source.OCR)
    tree = parsed(Document(pages=(page(blocks=(table,)),)))
    (of_table,) = of_class(tree, "ocr_table")
    assert of_table.get("title") == "bbox 1 2 3 4"
    assert [(one.text, one.get("title")) for one in of_class(of_table, "ocrx_word")] == [
        ("고혈압", "bbox 20 50 50 80; x_wconf 50"),
        ("약", "bbox 60 50 90 80; x_wconf 50"),
        ("5", "bbox 100 50 130 80; x_wconf 50"),
    ]
    assert "".join(of_class(tree, "ocr_line")[0].itertext()) == "고혈압약 5"


def test_hocr_says_where_lines_stand_how_sure_they_are_and_which_page_is_missing() -> None:
    first = page(1, "Hb 12\nb", (line("Hb 12", top=50, confidence=0.876), line("b", 90)))
    document = Document(pages=(first, page(11, "a", (line("a"),))), failed=(damaged(2),))
    tree = parsed(document)
    assert [one.get("title") for one in of_class(tree, "ocr_page")] == [
        f"bbox 0 0 600 800; ppageno {number}; x_verdict ok" for number in (0, 10)
    ]
    assert of_class(tree, "ocr_line")[0].get("title") == "bbox 20 50 400 80; x_wconf 88"
    names = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(names) == len(set(names)) == 9
    assert "<!-- Page 2 is missing: damaged. -->" in render(document, "hocr")
    metas = {meta.get("name"): meta.get("content") for meta in tree.iter(f"{XHTML}meta")}
    assert (metas["x-pecia-missing"], metas["ocr-number-of-pages"]) == ("2 damaged", "2")


def test_hocr_has_the_text_of_which_no_line_has_a_place_in_its_order() -> None:
    text = "first <row>\nHb 12\n5 mg\nlast"
    tree = parsed(Document(pages=(page(1, text, (line("Hb 12"), line("5 mg"))),)))
    assert [one.text for one in of_class(tree, "ocr_line")] == ["Hb 12", "5 mg"]
    (paragraph,) = of_class(tree, "ocr_par")
    assert "".join(paragraph.itertext()).split() == text.split()


def test_a_facsimile_has_a_block_without_text(tmp_path: Path) -> None:
    def no_picture(*_: Any, **__: Any) -> Picture:
        raise NoPictureError("gone")

    target = tmp_path / "page.html"
    facsimile.write(Document(pages=(page(blocks=(block(BlockKind.FIGURE, ""),)),)), no_picture, target)
    assert '<p class="figure"></p>' in target.read_text()


def milliseconds(stamp: str) -> int:
    hours, minutes, seconds, thousandths = map(int, re.split("[:.,]", stamp))
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + thousandths


def cues(subtitles: str, point: str) -> list[tuple[int, int, str]]:
    """Return start, end and text of each cue, as a strict parser takes a file apart."""
    stamp = rf"\d{{2,}}:[0-5]\d:[0-5]\d{re.escape(point)}\d{{3}}"
    found = []
    for block in subtitles.removesuffix("\n").split("\n\n") if subtitles else ():
        if block.startswith(("WEBVTT", "NOTE")):
            assert "-->" not in block
            continue
        number, times, *text = block.split("\n")
        match = re.fullmatch(rf"({stamp}) --> ({stamp})", times)
        assert number.isdigit()
        assert match
        assert all(text)
        assert "-->" not in "".join(text)
        found.append((milliseconds(match[1]), milliseconds(match[2]), "\n".join(text)))
    return found


def words(text: str) -> str:
    return "".join(character for character in text if character.isprintable() and not character.isspace())


@given(st.lists(HOSTILE | TEXTS, min_size=1, max_size=4), st.floats(0, 90_000))
def test_any_caption_is_one_cue_of_webvtt_with_its_words(texts: list[str], start: float) -> None:
    segments = tuple(segment(number, text, start, start + 30) for number, text in enumerate(texts, 1))
    captions = Captions(
        segments=segments, summary=FILM.summary and FILM.summary.model_copy(update={"text": texts[0]})
    )
    found = cues(render(captions, "vtt"), ".")
    assert not any("<" in text for _, _, text in found)
    told = [words(html.unescape(text)) for _, _, text in found]
    assert list(filter(None, told)) == list(filter(None, map(words, texts)))


@given(st.lists(HOSTILE | TEXTS, min_size=1, max_size=4))
def test_any_caption_is_one_cue_of_srt_without_tags(texts: list[str]) -> None:
    segments = tuple(segment(number, text) for number, text in enumerate(texts, 1))
    found = cues(render(Captions(segments=segments), "srt"), ",")
    assert len([text for _, _, text in found if words(text)]) == len([text for text in texts if words(text)])
    assert not any(re.search("</?[A-Za-z]", text) or "{\\" in text for _, _, text in found)


def test_times_are_the_nearest_milliseconds_and_no_cue_is_shorter_than_one() -> None:
    times = [(start, end) for start, end, _ in cues(render(FILM, "srt"), ",")]
    assert times == [(0, 30_000), (60_000, 3_661_250)]
    assert "00:01:00.000 --> 01:01:01.250" in render(FILM, "vtt")
    flash = Captions(segments=(segment(1, "flash", 2.0001, 2.0002),))
    assert cues(render(flash, "vtt"), ".") == [(2000, 2001, "flash")]


def test_webvtt_notes_the_summary_and_what_is_missing() -> None:
    film = FILM.model_copy(update={"segments": (*FILM.segments, segment(4, " \n"))})
    assert re.findall(r"NOTE\n(.*)", render(film, "vtt")) == [
        "A man walks, then sits.",
        "Segment 2 is missing: timeout.",
        "Segment 4 has no caption: ok.",
    ]


HAVE_NOT = [(PARTIAL, "srt"), (PARTIAL, "vtt"), (FILM, "hocr"), (FILM, "fields")]
NO_FORMS = [(PARTIAL, "docx", "markdown"), (PARTIAL, "pdf", "save")]


@pytest.mark.parametrize(
    ("result", "form", "said"), [*((*one, "use one of text, markdown, ") for one in HAVE_NOT), *NO_FORMS]
)
def test_a_form_that_the_result_has_not_is_refused_with_what_to_do(result: Any, form: str, said: str) -> None:
    with pytest.raises(errors.InvalidFormatError, match=said):
        render(result, form)


def test_a_suffix_names_its_form_and_an_unknown_one_those_there_are() -> None:
    for form in Format:
        named = Format.HTML if form is Format.FACSIMILE else form
        assert Format.of(Path(f"a/b.c{form.suffix.upper()}")) is named
    for name in ("result", "result.docx"):
        with pytest.raises(errors.InvalidFormatError, match=r"\.hocr"):
            Format.of(Path(name))
