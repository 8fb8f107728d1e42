"""PDFs whose page tree, page size or collection says something that pdfium does not see."""

import io
from dataclasses import replace
from typing import TypeAlias

import pikepdf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import inspect_file, load_page, page_pixels_and_dpi
from pecia_workers.media.page_tree import PageTree
from pecia_workers.media.pages import Limits, MediaError
from tests.shared.decoded import page_pixels
from tests.shared.fixture_types import MakeFile
from tests.shared.hand_made_pdfs import assembled, blank_pdf, box, document, stream, text_pdf

LIMITS = Limits.of(WorkerSettings())
Tree: TypeAlias = "int | list[Tree]"
"""A page by its width in points, or a node by its kids."""


def tree_pdf(tree: list[Tree], count: int) -> bytes:
    """Return a PDF whose every node states this many pages."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]

    def add(part: Tree) -> int:
        number = len(objects) + 1
        objects.append(b"")
        if isinstance(part, int):
            objects[number - 1] = b"<< /Type /Page %b >>" % box(part, 60)
        else:
            kids = b" ".join(b"%d 0 R" % add(kid) for kid in part)
            objects[number - 1] = b"<< /Kids [ %b ] /Type/Pages /Count %d >>" % (kids, count)
        return number

    add(tree)
    return assembled(objects)


def leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for kid in tree for leaf in leaves(kid)]


def widths(content: bytes, file: MakeFile, pages: PageRanges | None = None) -> list[int]:
    return [page.width for page in inspect_file(file(content), replace(LIMITS, render_dpi=72), pages)]


def refusal(content: bytes, file: MakeFile) -> MediaError:
    with pytest.raises(MediaError) as caught:
        inspect_file(file(content), LIMITS)
    return caught.value


def compressed(content: bytes) -> bytes:
    """The same with its objects in object streams."""
    buffer = io.BytesIO()
    with pikepdf.open(io.BytesIO(content)) as pdf:
        pdf.save(buffer, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return buffer.getvalue()


_nested = st.recursive(
    st.integers(50, 90), lambda kids: st.lists(kids, min_size=1, max_size=4), max_leaves=12
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.lists(_nested, min_size=1, max_size=4), count=st.integers(1, 14))
def test_every_page_is_read_whatever_the_nodes_count(tree: list[Tree], count: int, file: MakeFile) -> None:
    expected = leaves(tree)
    content = tree_pdf(tree, count)
    assert widths(content, file) == expected
    assert page_pixels(file(content), len(expected) - 1, LIMITS).any()


def test_a_document_changed_later_is_counted_by_its_last_tree(file: MakeFile) -> None:
    content = tree_pdf([50, 60], 2)
    place = len(content)
    later = b"2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj\n"
    ending = (
        b"xref\n2 1\n%010d 00000 n \ntrailer << /Root 1 0 R /Size 5 /Prev %d >>\nstartxref\n%d\n%%%%EOF\n"
    )
    changed = content + later + ending % (place, content.index(b"xref\n"), place + len(later))
    assert widths(changed, file) == [50]


def test_a_document_whose_last_change_is_cut_is_doubted(file: MakeFile) -> None:
    """What pdfium then shows is the document before that change."""
    whole = io.BytesIO()
    with pikepdf.open(io.BytesIO(text_pdf(["Warfarin 5 mg once daily"]))) as pdf:
        pdf.save(whole)
    content = whole.getvalue()
    later = b"9 0 obj\n<< /Length 4 >> stream\n0 g\n\nendstream\nendobj\nxref\n0 0\ntrailer << /Size 10 >>\n"
    for tail, doubts in ((b"", 0), (b"\n<html>object 5</html>", 0), (later, 1), (later[:30], 1)):
        assert len(load_page(file(content + tail), 0, LIMITS).doubts) == doubts


def test_a_tree_that_is_compressed_and_counts_too_few_is_refused_by_name(file: MakeFile) -> None:
    sound = compressed(blank_pdf(2))
    assert widths(sound, file) == [72, 72]
    nodes = b"<< /Type /Catalog /Pages 3 0 R >>      << /Type /Pages /Count 1 /Kids [4 0 R 5 0 R] >>"
    content = b"%PDF-1.7\n1 0 obj\n" + stream(b"2 0 3 39 " + nodes, b"/Type /ObjStm /N 2 /First 9")
    found = PageTree.of(content + b"\nendobj\n")
    assert (found.pages, found.counts) == ((4, 5), None)


@pytest.mark.parametrize("unit", [2, 72, 0.5, 1])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_page_is_as_large_as_its_unit_says(unit: float, is_compressed: bool, file: MakeFile) -> None:
    pages = [box(720 / unit, 1440 / unit) + b" /UserUnit %g" % unit, box(200, 100)]
    content = document(pages)
    assert widths(compressed(content) if is_compressed else content, file) == [720, 200]
    pixels, dpi = page_pixels_and_dpi(file(content), 0, LIMITS)
    assert pixels.shape[:2] == (3000, 1500)
    assert dpi == pytest.approx(150)


@pytest.mark.parametrize(
    ("points", "picture", "pixels"),
    [
        ((149, 211), (2480, 3508), (1240, 1754)),  # an A4 scan on a stamp
        ((298, 419), (1240, 1754), (1240, 1754)),
        ((100, 100), (600, 600), (600, 600)),
        ((100, 100), (20, 20), (209, 209)),  # coarser than the fleet's resolution
        ((595, 842), (4960, 7016), (1240, 1755)),
        ((420, 595), (2480, 3508), (875, 1240)),
    ],
)
def test_a_small_page_is_rendered_as_finely_as_its_pictures_are(
    points: tuple[int, int], picture: tuple[int, int], pixels: tuple[int, int], file: MakeFile
) -> None:
    buffer = io.BytesIO()
    Image.new("1", picture, 1).save(buffer, "PDF", resolution=72 * picture[0] / points[0])
    path = file(buffer.getvalue())
    drawn, dpi = page_pixels_and_dpi(path, 0, LIMITS)
    assert drawn.shape[1] == pytest.approx(pixels[0], abs=3)
    assert drawn.shape[0] == pytest.approx(pixels[1], abs=5)
    assert dpi == pytest.approx(72 * drawn.shape[1] / points[0], rel=0.02)


def attached(view: str | None) -> bytes:
    buffer = io.BytesIO()
    with pikepdf.open(io.BytesIO(blank_pdf())) as pdf:
        pdf.attachments["chart.pdf"] = blank_pdf()
        if view:
            pdf.Root.Collection = pikepdf.Dictionary(Type=pikepdf.Name.Collection, View=pikepdf.Name(view))
        pdf.save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("view", ["/D", "/T"])
def test_a_portfolio_is_refused_by_name(view: str, is_compressed: bool, file: MakeFile) -> None:
    content = attached(view)
    error = refusal(compressed(content) if is_compressed else content, file)
    assert error.code is FailureCode.UNSUPPORTED_TYPE
    assert "portfolio" in error.found


@pytest.mark.parametrize("view", [None, "/H"])
def test_a_document_with_attachments_is_read(view: str | None, file: MakeFile) -> None:
    assert widths(attached(view), file) == [72]


def test_files_that_are_attached_are_counted(file: MakeFile) -> None:
    assert load_page(file(blank_pdf()), 0, LIMITS).attachments == 0
    assert load_page(file(attached(None)), 0, LIMITS).attachments == 1
    buffer = io.BytesIO()
    with pikepdf.open(io.BytesIO(attached(None))) as pdf:
        kind, place = pikepdf.Name.FileAttachment, pikepdf.Array([0, 0, 9, 9])
        note = pikepdf.Dictionary(Type=pikepdf.Name.Annot, Subtype=kind, Rect=place)
        pdf.pages[0].Annots = pdf.make_indirect(pikepdf.Array([note]))
        pdf.save(buffer)
    assert load_page(file(buffer.getvalue()), 0, LIMITS).attachments == 2
