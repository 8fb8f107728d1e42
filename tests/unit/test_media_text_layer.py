"""A PDF page's own text: exact where it is trusted, not trusted where it may be wrong; and fonts that are missing."""

import shutil
import string
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import Source, text_of
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preparation
from pecia_workers.commands import doctor
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits, MediaError, PageImage, Plan
from pecia_workers.media.recognition import scripts_without_a_font
from pecia_workers.media.text_layer import Distrust, TextLayer, text_layer
from pecia_workers.processes.confinement import Guard, missing_guards
from tests.shared import hand_made_pdfs as pdfs
from tests.shared.pictures import encoded

PROSE = [
    "The patient was seen in clinic with cough and fever for 3 days; pressure 140/90",
    "mmHg, heart rate 78, glucose 5.46 mmol/L. Quick brown foxes jump over 12 lazy",
    "dogs. Dr. J. Kowalski-Xu, Ward 7B. Dose: 0.005 mg/l, batch O0l1I5S8B.",
]
LIMITS = Limits.of(WorkerSettings())
SHIFTED = {one: chr(ord(one) + 1) for one in string.ascii_lowercase[:-1]} | {"z": "a"}
DIGITS = {one: str((int(one) + 1) % 10) for one in string.digits}


SCALE: Any = 150 / 72  # typed as int there


def layer_of(pdf: bytes) -> TextLayer:
    with pypdfium2.PdfDocument(pdf) as document:
        page = document[0]
        bitmap = page.render(scale=SCALE, rev_byteorder=True, fill_color=(255, 255, 255, 255))
        return text_layer(page, np.array(bitmap.to_numpy()[:, :, :3]))


def lines_of(pdf: bytes) -> list[str]:
    return [line.text for line in layer_of(pdf).lines()]


def read(pdf: bytes, directory: Path, plan: Plan | None = None) -> PageImage:
    path = directory / "page.pdf"
    path.write_bytes(pdf)
    return load_page(path, 0, LIMITS, plan or Plan())


def picture_of(lines: list[str]) -> bytes:
    image = Image.new("L", (1000, 400), 255)
    ImageDraw.Draw(image).multiline_text((10, 10), "\n".join(lines), fill=0, font=ImageFont.load_default(24))
    return encoded(image, "JPEG", quality=95)


@pytest.mark.parametrize("size", [6, 11, 24])
def test_a_written_page_is_trusted_and_its_text_is_exact(size: int) -> None:
    lines = [line[: 900 // size] for line in PROSE]
    layer = layer_of(pdfs.written_pdf(pdfs.typeset(lines, size=size)))
    assert layer.distrust is None
    assert [line.text for line in layer.lines()] == lines


def test_boxes_lie_around_the_ink_of_their_words() -> None:
    pdf = pdfs.written_pdf(pdfs.typeset(["alpha        omega"]) + pdfs.typeset(["beta gamma"], top=400))
    with pypdfium2.PdfDocument(pdf) as document:
        ink = document[0].render(scale=SCALE).to_numpy()[:, :, 0] < 128
    for word in (word for line in layer_of(pdf).lines() for word in line.words):
        box = word.box
        assert ink[box.top : box.bottom, box.left : box.right].any()
        ink[box.top : box.bottom, box.left : box.right] = False
    assert not ink.any()


def test_pieces_with_a_wide_gap_between_them_are_apart_and_a_hyphen_at_the_end_of_a_line_stays() -> None:
    content = pdfs.typeset(["Sodium"]) + pdfs.typeset(["140 mmol/l"], left=200)
    assert lines_of(pdfs.written_pdf(content)) == ["Sodium", "140 mmol/l"]
    assert lines_of(pdfs.written_pdf(pdfs.typeset(["incon-", "clusive"]))) == ["incon-", "clusive"]


def test_raised_and_lowered_digits_stay_raised_and_lowered() -> None:
    raised = b"BT /F 11 Tf 60 700 Td (3.60 x10) Tj 4 Ts /F 7 Tf (6) Tj 0 Ts /F 11 Tf (/l of H) Tj -2 Ts /F 7 Tf (2) Tj"
    pdf = pdfs.written_pdf(pdfs.typeset(PROSE) + raised + b" 0 Ts /F 11 Tf (O) Tj ET")
    assert lines_of(pdf)[-1] == "3.60 x10⁶/l of H₂O"


GLYPHS = {
    "ligature": ("\ufb01", "fi"),
    "soft hyphen": ("\u00ad", "-"),
    "radical": ("\u2f08", "人"),
    "tick of Wingdings": ("\uf0fe", "☑"),
    "three letters": ("ffi", "ffi"),
    "beyond the basic plane": ("\U0001f600", "\U0001f600"),
}


@pytest.mark.parametrize(("said", "text"), GLYPHS.values(), ids=GLYPHS)
def test_what_one_glyph_stands_for_is_read_as_it_looks(said: str, text: str) -> None:
    drawn = "\N{PILCROW SIGN}"
    pdf = pdfs.written_pdf(pdfs.typeset([*PROSE, f"a{drawn}b"]), means={drawn: said})
    assert lines_of(pdf)[-1] == f"a{text}b"


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_page_is_turned_until_its_text_stands_upright(degrees: int, tmp_path: Path) -> None:
    page = read(pdfs.written_pdf(pdfs.typeset(PROSE), about=b" /Rotate %d" % degrees), tmp_path)
    assert text_of(page.blocks).split("\n") == PROSE
    assert page.rotation == -degrees % 360
    height, width = page.pixels.shape[:2]
    assert height > width
    assert page.blocks[0].lines[0].box.top < height / 8


@pytest.mark.parametrize("lines", [[], PROSE], ids=["all of the page", "a line of it"])
def test_letters_of_a_negative_size_in_a_turned_matrix_are_upright(lines: list[str], tmp_path: Path) -> None:
    content = b"BT /F -11 Tf -1 0 0 -1 60 300 Tm (Glucose 5.46 mmol/l) Tj ET"
    page = read(pdfs.written_pdf(pdfs.typeset(lines) + content), tmp_path)
    assert (page.rotation, text_of(page.blocks).split("\n")[-1]) == (0, "Glucose 5.46 mmol/l")


def test_the_crop_box_is_what_counts(tmp_path: Path) -> None:
    page = read(pdfs.written_pdf(pdfs.typeset(PROSE), about=b" /CropBox [50 700 595 842]"), tmp_path)
    assert text_of(page.blocks).split("\n") == PROSE
    first = page.blocks[0].lines[0].box
    assert first.bottom < page.pixels.shape[0]
    assert (page.pixels[first.top : first.bottom, first.left : first.right] < 128).any()


def test_boxes_follow_a_page_that_is_scaled_down(tmp_path: Path) -> None:
    pdf = pdfs.written_pdf(pdfs.typeset(PROSE))
    whole, small = read(pdf, tmp_path), read(pdf, tmp_path, Plan(most_pixels=500_000))
    assert small.scale < 1
    for before, after in zip(whole.blocks[0].lines, small.blocks[0].lines, strict=True):
        assert after.text == before.text
        assert after.box.right == pytest.approx(before.box.right * small.scale, abs=1.5)


def test_what_is_typed_into_a_form_is_part_of_the_text(tmp_path: Path) -> None:
    page = read(pdfs.form_pdf(PROSE, "Filled in 4711"), tmp_path)
    assert text_of(page.blocks).split() == [*" ".join(PROSE).split(), "Filled", "in", "4711"]


@pytest.mark.parametrize("flags", [0, 1, 4])  # 1, "invisible", is said of kinds that no viewer knows
def test_a_stamp_that_is_drawn_is_part_of_the_text(flags: int, tmp_path: Path) -> None:
    shown = b"/Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F 4 0 R >> >>"
    note = b" /Annots [<< /Subtype /Stamp /Rect [60 500 260 520] /F %d /AP << /N 5 0 R >> >>]" % flags
    page = pdfs.box(595, 842) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>" + note
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    stamp = pdfs.stream(pdfs.typeset(["Void 4711"], left=2, top=21), shown)
    found = read(pdfs.document([page], [pdfs.stream(pdfs.typeset(PROSE)), font, stamp]), tmp_path)
    assert text_of(found.blocks).endswith("Void 4711")


def test_a_scan_that_cannot_be_decoded_fails_its_page_whatever_is_stamped_on_it(tmp_path: Path) -> None:
    pdf = partial(pdfs.written_pdf, picture=bytes(400))
    with pytest.raises(MediaError, match=r"damaged: A picture on the page cannot be decoded\."):
        read(pdf(b"q 595 0 0 842 0 0 cm /P Do Q " + pdfs.typeset(["Exhibit 000123"])), tmp_path)
    logo = read(pdf(b"q 60 0 0 60 0 0 cm /P Do Q " + pdfs.typeset(PROSE)), tmp_path)
    assert text_of(logo.blocks).split("\n") == PROSE


TEXT, LETTERS = pdfs.typeset(PROSE), string.ascii_letters
NOT_TRUSTED: dict[str, tuple[Distrust, bytes, dict[str, Any]]] = {
    "missing": (Distrust.NO_TEXT, b"", {}),
    "hardly any": (Distrust.NO_TEXT, pdfs.typeset(["Fig. 1"]), {}),
    "invisible": (Distrust.HIDDEN, pdfs.typeset(PROSE, mode=3), {}),
    "white on white": (Distrust.HIDDEN, b"1 g " + TEXT, {}),
    "below a bar": (Distrust.HIDDEN, TEXT + b" 0 g 0 600 595 242 re f", {}),
    "below a scan": (
        *(Distrust.HIDDEN, TEXT + b" q 595 0 0 842 0 0 cm /P Do Q"),
        {"picture": picture_of(PROSE)},
    ),
    "below a picture of other text": (
        *(Distrust.PICTURE, pdfs.typeset(PROSE, top=480) + TEXT + b" q 475 0 0 190 60 320 cm /P Do Q"),
        {"picture": picture_of([line.upper() for line in PROSE] * 4)},
    ),
    "beside a large picture": (
        *(Distrust.PICTURE, b"q 595 0 0 600 0 200 cm /P Do Q " + pdfs.typeset(PROSE, top=150)),
        {"picture": picture_of(PROSE)},
    ),
    "text in a picture": (
        *(Distrust.UNCOVERED, b"q 475 0 0 190 60 400 cm /P Do Q " + TEXT),
        {"picture": picture_of(PROSE)},
    ),
    "turned by 30 degrees": (Distrust.TURNED, b"q .87 .5 -.5 .87 300 -200 cm " + TEXT + b" Q", {}),
    **{
        name: (why, TEXT, {"means": means})
        for name, why, means in (
            ("private use", Distrust.UNMAPPED, {one: chr(0xE000 + ord(one)) for one in LETTERS}),
            ("letters mixed up", Distrust.MISNAMED, SHIFTED),
            ("digits mixed up", Distrust.MISNAMED, DIGITS),
            ("said to be Korean", Distrust.MISNAMED, {one: chr(0xAC00 + ord(one)) for one in LETTERS}),
            ("accents", Distrust.MISNAMED, {one: chr(0xC0 + ord(one) % 32) for one in LETTERS[:26]}),
        )
    },
}


@pytest.mark.parametrize(("why", "content", "how"), NOT_TRUSTED.values(), ids=NOT_TRUSTED)
def test_a_layer_that_may_be_wrong_is_not_trusted(
    why: Distrust, content: bytes, how: dict[str, Any], tmp_path: Path
) -> None:
    pdf = pdfs.written_pdf(content, **how)
    assert layer_of(pdf).distrust is why
    assert not read(pdf, tmp_path).blocks


def beside(picture: bytes, height: int = 190) -> bytes:
    """Return a written page with a picture below its text."""
    return pdfs.written_pdf(TEXT + b" q 475 0 0 %d 60 400 cm /P Do Q" % height, picture=picture)


@pytest.mark.parametrize("lines", [["ALLERGY: PENICILLIN"], PROSE], ids=["a few words", "much of the page"])
@pytest.mark.parametrize("most_pixels", [10**8, 500_000])
def test_a_layer_stays_where_an_engine_reads_the_rest_and_says_where_that_stands(
    lines: list[str], most_pixels: int, tmp_path: Path
) -> None:
    page = read(beside(picture_of(lines)), tmp_path, Plan(completes=True, most_pixels=most_pixels))
    assert text_of(page.blocks).split("\n")[: len(PROSE)] == PROSE
    assert [line.text for line in page.pieces] == PROSE
    ink = np.argwhere(page.pixels[:, :, 0] < 128)
    ink = ink[ink[:, 0] > page.pieces[-1].box.bottom]
    [box] = page.unread
    assert (ink.min(axis=0) >= (box.top, box.left)).all()
    assert (ink.max(axis=0) < (box.bottom, box.right)).all()
    assert box.bottom - box.top < page.pixels.shape[0] / 4


def test_without_such_an_engine_it_stays_where_it_leaves_little_out(tmp_path: Path) -> None:
    page = read(beside(picture_of(["ALLERGY: PENICILLIN"])), tmp_path)
    assert text_of(page.blocks).split("\n") == PROSE
    assert len(page.unread) == 1


def ornament(name: str) -> bytes:
    """Return a picture without text."""
    image = Image.new("L", (1000, 400), 255)
    draw = ImageDraw.Draw(image)
    match name:
        case "photograph":
            noise = np.random.default_rng(1).normal(size=(400, 1000))
            rough = np.hypot(*np.meshgrid(np.fft.fftfreq(1000, 1e-3), np.fft.fftfreq(400, 1 / 400)))
            grain = np.fft.ifft2(np.fft.fft2(noise) / np.maximum(rough, 1) ** 1.5).real
            image = Image.fromarray((128 + 60 * grain / grain.std()).clip(0, 255).astype(np.uint8))
        case "gradient":
            image = Image.linear_gradient("L").resize(image.size)
        case "emblem":
            draw.ellipse((400, 100, 600, 300), fill=90)
            draw.polygon([(450, 250), (500, 120), (550, 250)], fill=230)
        case "bars":
            for number, height in enumerate((120, 300, 200, 260)):
                draw.rectangle((150 + 200 * number, 350 - height, 250 + 200 * number, 350), fill=60)
            draw.line((100, 350, 950, 350), fill=0, width=4)
        case "frame":
            draw.rectangle((10, 10, 990, 390), outline=0, width=6)
    return encoded(image, "JPEG", quality=90)


@pytest.mark.parametrize("name", ["photograph", "gradient", "emblem", "bars", "frame"])
@pytest.mark.parametrize("completes", [True, False])
def test_a_picture_without_text_leaves_nothing_to_be_read(name: str, completes: bool, tmp_path: Path) -> None:
    page = read(beside(ornament(name)), tmp_path, Plan(completes=completes))
    assert text_of(page.blocks).split("\n") == PROSE
    assert page.unread == ()


@pytest.mark.parametrize("means", [SHIFTED, DIGITS])
@pytest.mark.parametrize("size", [6, 8, 14])
def test_mixed_up_letters_are_found_at_any_size(means: Mapping[str, str], size: int) -> None:
    pdf = pdfs.written_pdf(pdfs.typeset([line[:70] for line in PROSE], size=size), means=means)
    assert layer_of(pdf).distrust is Distrust.MISNAMED


def test_light_letters_on_a_dark_ground_are_trusted() -> None:
    pdf = pdfs.written_pdf(b"0 .3 .5 rg 0 600 595 242 re f 1 g " + pdfs.typeset(PROSE))
    assert layer_of(pdf).distrust is None


def test_a_word_below_a_black_bar_is_no_part_of_the_text() -> None:
    name = pdfs.typeset(["Jane Sampleton"], top=600) + b" 0 g 55 580 120 20 re f"
    layer = layer_of(pdfs.written_pdf(pdfs.typeset(PROSE) + name))
    assert layer.distrust is None
    assert [line.text for line in layer.lines()] == PROSE


POTASSIUM = "Potassium 3.85 mmol/l, sodium 141 mmol/l"


@given(st.floats(0, 1), st.integers(6, 20))
@example(0.965, 11)
def test_pale_print_is_seen_as_a_whole_or_not_at_all(grey: float, size: int) -> None:
    pale = b"%.4f g " % grey + pdfs.typeset([POTASSIUM], top=600, size=size)
    lines = lines_of(pdfs.written_pdf(pdfs.typeset(PROSE) + pale))
    assert lines in ([*PROSE, POTASSIUM], PROSE)
    if grey < 0.95:
        assert lines[-1] == POTASSIUM


@given(st.one_of(st.floats(0.2, 1.5), st.floats(1.7, 20)))
def test_print_that_is_too_small_for_any_eye_is_no_part_of_the_text(size: float) -> None:
    small = pdfs.typeset([POTASSIUM], top=600, size=size)
    lines = lines_of(pdfs.written_pdf(pdfs.typeset(PROSE) + small))
    assert lines == ([*PROSE, POTASSIUM] if size > 1.6 else PROSE)


def test_a_page_is_not_turned_if_that_step_is_left_out(tmp_path: Path) -> None:
    steps = tuple(step for step in Preparation if step is not Preparation.ORIENT)
    page = read(pdfs.written_pdf(pdfs.typeset(PROSE), about=b" /Rotate 90"), tmp_path, Plan(steps=steps))
    assert page.rotation == 0
    assert not page.blocks


_WITHOUT_FONTS = """
import sys
from pathlib import Path
from pecia_schemas.blocks import text_of
from pecia_schemas.settings import WorkerSettings
from pecia_workers.processes import confinement
from pecia_workers.media.decoding import load_page
from pecia_workers.media.recognition import scripts_without_a_font
from pecia_workers.media.pages import Limits

confinement._READABLE = tuple(place for place in confinement._READABLE if "fonts" not in place)
assert confinement.confine_files(map(Path, sys.argv[1:]))
print(*scripts_without_a_font())
for path in sys.argv[1:]:
    page = load_page(Path(path), 0, Limits.of(WorkerSettings()))
    print(text_of(page.blocks), page.blank, *{block.source for block in page.blocks})
"""


def _without_fonts(*documents: Path) -> list[str]:
    """Return what the script prints, whatever fonts this machine has."""
    command = [sys.executable, "-c", _WITHOUT_FONTS, *map(str, documents)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def _installed(language: str) -> bool:
    lister = shutil.which("fc-list")
    return bool(
        lister and subprocess.run([lister, f":lang={language}"], check=True, capture_output=True).stdout
    )


@pytest.mark.skipif(Guard.LANDLOCK in missing_guards(), reason="the kernel hides no files")
def test_all_scripts_are_without_a_font_where_there_are_no_fonts() -> None:
    assert _without_fonts() == ["Chinese Japanese Korean"]


@pytest.mark.skipif(Guard.LANDLOCK in missing_guards(), reason="the kernel hides no files")
def test_a_page_that_draws_blank_because_a_font_is_missing_is_read_from_its_layer(tmp_path: Path) -> None:
    path = tmp_path / "page.pdf"
    path.write_bytes(pdfs.chinese_pdf("患者因咳嗽发热三天就诊"))
    assert _without_fonts(path)[1] == f"患者因咳嗽发热三天就诊 False {Source.LAYER}"


@pytest.mark.skipif(not _installed("ko"), reason="no Korean font is installed")
def test_a_script_whose_font_is_installed_is_not_named() -> None:
    assert "Korean" not in scripts_without_a_font()


def test_the_doctor_names_the_scripts_that_draw_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "scripts_without_a_font", lambda: ("Chinese", "Japanese"))
    assert "none for Chinese or Japanese" in doctor._look_at_fonts().detail
