import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset, uid
from pydicom.encaps import encapsulate, generate_frames
from pydicom.filebase import DicomIO
from pydicom.filewriter import write_dataset
from pydicom.pixels.utils import pack_bits

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, PageRanges, sniff
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import inspect_file, load_page
from pecia_workers.media.pages import Limits, MediaError, Plan
from tests.shared.decoded import page_pixels
from tests.shared.dicom_files import PATIENT, encapsulated_pdf, report_without_pixels, secondary_capture
from tests.shared.fixture_types import MakeFile
from tests.shared.hand_made_pdfs import blank_pdf, locked_pdf
from tests.shared.pictures import encoded

LIMITS = Limits.of(WorkerSettings())
RAMP = np.linspace(0, 255, 6000).astype(np.uint8).reshape(100, 60)
RED = np.full((100, 60, 3), (200, 0, 0), dtype=np.uint8)


def shades(path: Path) -> NDArray[Any]:
    (page,) = inspect_file(path, LIMITS)
    assert (page.width, page.height) == (60, 100)
    pixels = page_pixels(path, 0, LIMITS)
    assert (pixels == pixels[:, :, :1]).all()
    return pixels[:, :, 0]


def jpeg(pixels: NDArray[np.uint8], kind: str = "JPEG", **options: Any) -> bytes:
    return encoded(Image.fromarray(pixels), kind, **options)


JPEG2000 = jpeg(RED, "JPEG2000", no_jp2=True)


def with_palette(red: bytes) -> bytes:
    """A picture all of the palette's second colour; the palette has as much green and blue as black has."""
    about: dict[str, Any] = {}
    for name, data in {"Red": red, "Green": bytes(4), "Blue": bytes(4)}.items():
        about[f"{name}PaletteColorLookupTableDescriptor"] = [2, 0, 16]
        about[f"{name}PaletteColorLookupTableData"] = data
    return secondary_capture(np.full((100, 60), 1, dtype=np.uint8), "PALETTE COLOR", **about)


def failure(path: Path, limits: Limits = LIMITS) -> MediaError:
    with pytest.raises(MediaError) as caught:
        [page_pixels(path, page.index, limits) for page in inspect_file(path, limits)]
    return caught.value


def test_its_content_tells_that_it_is_dicom_even_behind_the_header_of_a_tiff() -> None:
    content = secondary_capture(RAMP)
    assert sniff(content[:HEAD_BYTES]) is MediaType.DICOM
    assert sniff(b"II*\0" + content[4:HEAD_BYTES]) is MediaType.DICOM


def test_grey_is_read_as_it_is_stored_and_inverted_where_low_values_are_light(file: MakeFile) -> None:
    pale = 200 + RAMP // 16
    rescaled = secondary_capture(pale, RescaleSlope="1", RescaleIntercept="0")
    assert (shades(file(secondary_capture(RAMP))) == RAMP).all()
    assert (shades(file(rescaled)) == pale).all()
    assert (shades(file(secondary_capture(RAMP, "MONOCHROME1"))) == 255 - RAMP).all()


def test_a_window_chooses_the_shades(file: MakeFile) -> None:
    deep = RAMP.astype(np.uint16) * 16
    whole = shades(file(secondary_capture(deep, bits=12, WindowCenter=2048, WindowWidth=4096)))
    upper = shades(file(secondary_capture(deep, bits=12, WindowCenter=[3072, 1], WindowWidth=[2048, 9])))
    assert np.abs(whole.astype(int) - RAMP).max() <= 1
    assert (upper[RAMP < 126] == 0).all()
    assert upper[-1, -1] >= 252


def test_a_window_is_meant_after_rescaling(file: MakeFile) -> None:
    signed = RAMP.astype(np.int16) - 100
    rescaled: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": 50}
    content = secondary_capture(signed, **rescaled, WindowCenter=104.5, WindowWidth=511)
    assert np.abs(shades(file(content)).astype(int) - RAMP).max() <= 1


def test_deep_grey_without_a_window_goes_from_its_darkest_to_its_lightest(file: MakeFile) -> None:
    deep = RAMP.astype(np.uint16) * 3 + 500
    assert (shades(file(secondary_capture(deep, bits=12))) == RAMP).all()
    for center, width in ((7, 0), (7, 9)):  # no window at all, and one that shows nothing
        content = secondary_capture(deep, bits=12, WindowCenter=center, WindowWidth=width)
        assert (shades(file(content)) == RAMP).all()


def test_a_capture_of_black_and_white_is_read(file: MakeFile) -> None:
    bits = np.packbits(RAMP > 127, bitorder="little")
    content = secondary_capture(RAMP, PixelData=bits.tobytes(), BitsAllocated=1, BitsStored=1, HighBit=0)
    assert (shades(file(content)) == np.where(RAMP > 127, 255, 0)).all()


def overlaid(
    content: bytes,
    plane: NDArray[np.bool_],
    *,
    group: int = 0x6000,
    origin: tuple[int, int] = (1, 1),
    frame: int | None = None,
    kind: str = "G",
) -> bytes:
    """The file with an overlay of one frame, over all of its own or over one of them, counted from 1."""
    dataset, buffer = pydicom.dcmread(io.BytesIO(content)), io.BytesIO()
    elements: dict[int, tuple[str, Any]] = {
        0x10: ("US", plane.shape[0]),
        0x11: ("US", plane.shape[1]),
        0x40: ("CS", kind),
        0x50: ("SS", list(origin)),
        0x100: ("US", 1),
        0x102: ("US", 0),
        0x3000: ("OW", pack_bits(plane)),
    }
    if frame:
        elements |= {0x15: ("IS", 1), 0x51: ("US", frame)}
    for element, (form, value) in elements.items():
        dataset.add_new(group << 16 | element, form, value)
    dataset.save_as(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("group", [0x6000, 0x600A, 0x601E])
@pytest.mark.parametrize("origin", [(1, 1), (31, 11), (-4, -9), (95, 55), (200, 200)])
@pytest.mark.parametrize("ground", [0, 255])
def test_an_overlay_is_drawn_where_it_lies_so_that_it_is_seen(
    group: int, origin: tuple[int, int], ground: int, file: MakeFile
) -> None:
    plane = np.zeros((20, 30), dtype=bool)
    plane[5:15:4, 10:20] = True
    expected = np.full((200, 160), ground, dtype=np.uint8)  # with a margin of 50
    top, left = max(0, 49 + origin[0]), max(0, 49 + origin[1])
    drawn = expected[top : top + 20, left : left + 30]
    drawn[plane[: drawn.shape[0], : drawn.shape[1]]] = 255 - ground
    content = secondary_capture(np.full((100, 60), ground, dtype=np.uint8))
    seen = shades(file(overlaid(content, plane, group=group, origin=origin)))
    assert (seen == expected[50:150, 50:110]).all()


@pytest.mark.parametrize(("frame", "on"), [(None, [True, True, True]), (2, [False, True, False])])
def test_an_overlay_lies_over_frames_that_it_names(frame: int | None, on: list[bool], file: MakeFile) -> None:
    content = secondary_capture(np.zeros((3, 100, 60), dtype=np.uint8), frames=3)
    path = file(overlaid(content, np.eye(100, 60, dtype=bool), frame=frame))
    assert [page_pixels(path, index, LIMITS).any() for index in range(3)] == on


def test_an_overlay_within_the_unused_bits_of_the_pixels_is_drawn(file: MakeFile) -> None:
    plane = np.zeros((100, 60), dtype=bool)
    plane[20:30, 10:50] = True
    grey = np.full((100, 60), 0x5A0, dtype=np.uint16)
    dataset, buffer = (
        pydicom.dcmread(io.BytesIO(secondary_capture(grey | plane * 0x2000, bits=12))),
        io.BytesIO(),
    )
    for element, value in ((0x10, 100), (0x11, 60), (0x100, 16), (0x102, 13)):
        dataset.add_new(0x6000_0000 | element, "US", value)
    dataset.add_new(0x6000_0040, "CS", "G")
    dataset.save_as(buffer)
    seen = shades(file(buffer.getvalue()))
    assert len({*seen[plane].tolist()}) == len({*seen[~plane].tolist()}) == 1
    assert seen[plane][0] != seen[~plane][0]


def test_a_region_of_interest_covers_nothing(file: MakeFile) -> None:
    path = file(overlaid(secondary_capture(RAMP), np.ones((100, 60), dtype=bool), kind="R"))
    assert (shades(path) == RAMP).all()


def test_text_in_a_region_of_interest_is_drawn(file: MakeFile) -> None:
    plane = np.zeros((100, 60), dtype=bool)
    plane[20:40, 10:14] = plane[60:90, 20:50] = True
    seen = shades(file(overlaid(secondary_capture(np.zeros((100, 60), dtype=np.uint8)), plane, kind="R")))
    assert seen[20:40, 10:14].all()
    assert not seen[50:].any()


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("first", [0, 50, -100])
def test_a_lookup_table_chooses_the_shades(bits: int, first: int, file: MakeFile) -> None:
    table = Dataset()
    darkening = ((2**bits - 1) * np.linspace(1, 0, 256)).astype(np.uint16)
    table.LUTDescriptor = [256, first % 2**16, bits]
    table["LUTDescriptor"].VR = "US"
    table.LUTData = darkening.astype(np.uint8).tobytes() if bits == 8 else darkening.tobytes()
    table["LUTData"].VR = "OW"
    content = secondary_capture(RAMP.astype(np.int16) + first, VOILUTSequence=[table])
    assert np.abs(shades(file(content)).astype(int) - (255 - RAMP)).max() <= 1


def test_a_lookup_table_that_is_none_leaves_the_picture_as_it_is(file: MakeFile) -> None:
    assert (shades(file(secondary_capture(RAMP, VOILUTSequence=[Dataset()]))) == RAMP).all()


def functional_group(center: float, slope: float = 1) -> Dataset:
    window, rescaling, group = Dataset(), Dataset(), Dataset()
    window.WindowCenter, window.WindowWidth = center, 256
    rescaling.RescaleSlope, rescaling.RescaleIntercept = slope, 0
    group.FrameVOILUTSequence, group.PixelValueTransformationSequence = [window], [rescaling]
    return group


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_frame_is_shown_as_its_functional_groups_say(is_shared: bool, file: MakeFile) -> None:
    deep = RAMP.astype(np.uint16) + 1000
    own = [functional_group(1128), functional_group(2256, slope=2)]
    about: dict[str, Any] = {"PerFrameFunctionalGroupsSequence": own}
    if is_shared:
        about = {"SharedFunctionalGroupsSequence": own[:1]}
    content = secondary_capture(np.stack([deep, deep]), frames=2, WindowCenter=50, WindowWidth=100, **about)
    path = file(content)
    first, second = (page_pixels(path, index, LIMITS)[:, :, 0].astype(int) for index in range(2))
    assert np.abs(first - RAMP).max() <= 1
    expected = RAMP if is_shared else np.clip((RAMP.astype(int) + 1000) * 2 - 2256 + 128, 0, 255)
    assert np.abs(second - expected).max() <= 1


def in_run_lengths() -> bytes:
    dataset, buffer = pydicom.dcmread(io.BytesIO(secondary_capture(RED, "RGB"))), io.BytesIO()
    dataset.compress(uid.RLELossless)
    dataset.save_as(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "accuracy"),
    [
        (in_run_lengths(), 0),
        (secondary_capture(RED, "RGB"), 0),
        (secondary_capture(RED, "RGB", syntax=uid.DeflatedExplicitVRLittleEndian), 0),
        (secondary_capture(RED, "RGB", syntax=uid.ImplicitVRLittleEndian), 0),
        (secondary_capture(RED.astype(np.uint16) * 257, "RGB"), 0),
        (secondary_capture(RED.astype(np.uint16) * 16, "RGB", bits=12), 0),
        (secondary_capture(np.full_like(RED, (60, 94, 228)), "YBR_FULL"), 1),
        (secondary_capture(RED, "YBR_FULL_422", compressed=[jpeg(RED)], syntax=uid.JPEGBaseline8Bit), 2),
        (secondary_capture(RED, "YBR_RCT", compressed=[JPEG2000], syntax=uid.JPEG2000Lossless), 0),
        (with_palette(b"\0\0\xff\xc8"), 0),
        (with_palette(b"\0\0\xc8\0"), 0),
    ],
    ids=[
        "rle", "rgb", "deflated", "implicit", "16-bit", "12 bits", "ybr", "jpeg", "jpeg 2000", "palette",
        "8 bits in 16",
    ],
)  # fmt: skip
def test_colours_become_rgb(content: bytes, accuracy: int, file: MakeFile) -> None:
    path = file(content)
    assert len(inspect_file(path, LIMITS)) == 1
    assert np.abs(page_pixels(path, 0, LIMITS).astype(int) - RED).max() <= accuracy


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian])
@pytest.mark.parametrize("with_meta", [True, False])
def test_a_file_without_a_preamble_is_read(syntax: uid.UID, with_meta: bool, file: MakeFile) -> None:
    dataset = pydicom.dcmread(io.BytesIO(secondary_capture(RAMP, syntax=syntax)))
    buffer = io.BytesIO()
    writer = DicomIO(buffer)
    writer.is_little_endian, writer.is_implicit_VR = True, syntax.is_implicit_VR
    if with_meta:
        writer.write(secondary_capture(RAMP, syntax=syntax)[132:])
    else:
        write_dataset(writer, dataset)
    content = buffer.getvalue()

    assert sniff(content[:HEAD_BYTES]) is MediaType.DICOM
    assert (shades(file(content)) == RAMP).all()


def test_each_frame_is_a_page(file: MakeFile) -> None:
    path = file(secondary_capture(np.stack([RAMP, 255 - RAMP, RAMP // 2]), frames=3))
    assert [page.index for page in inspect_file(path, LIMITS)] == [0, 1, 2]
    assert [page.index for page in inspect_file(path, LIMITS, PageRanges.parse("2-"))] == [1, 2]
    assert (page_pixels(path, 1, LIMITS)[:, :, 0] == 255 - RAMP).all()
    with pytest.raises(MediaError, match="no_such_page"):
        page_pixels(path, 3, LIMITS)


@pytest.mark.parametrize("stated", [-1, 2])
@pytest.mark.parametrize(
    "kind", ["as they are", "as they are, implicit", "without a preamble", "jpeg", "jpeg with offsets"]
)
def test_frames_that_are_not_counted_are_pages_too(kind: str, stated: int, file: MakeFile) -> None:
    frames = np.stack([RAMP, 255 - RAMP, RAMP // 2])
    about: dict[str, Any] = {}
    if "implicit" in kind:
        about["syntax"] = uid.ImplicitVRLittleEndian
    if "jpeg" in kind:
        about |= {"syntax": uid.JPEGBaseline8Bit, "compressed": [jpeg(frame, quality=95) for frame in frames]}
    content = secondary_capture(frames, frames=3, **about, NumberOfFrames=stated)
    if kind == "jpeg":
        content = without_offsets(content)
    path = file(content[132:] if "preamble" in kind else content)
    assert len(inspect_file(path, LIMITS)) == 3
    assert np.abs(page_pixels(path, 2, LIMITS)[:, :, 0].astype(int) - RAMP // 2).max() < 9


def without_offsets(content: bytes) -> bytes:
    dataset, buffer = pydicom.dcmread(io.BytesIO(content)), io.BytesIO()
    dataset.PixelData = encapsulate(
        list(generate_frames(dataset.PixelData, number_of_frames=3)), has_bot=False
    )
    dataset.save_as(buffer)
    return buffer.getvalue()


def test_a_jpeg_frame_that_lost_its_second_half_is_doubted(file: MakeFile) -> None:
    whole = jpeg(np.random.default_rng(5).integers(0, 255, (100, 60), dtype=np.uint8))
    for content, doubts in ((whole, 0), (whole[: len(whole) // 2] + b"\xff\xd9", 1)):
        path = file(secondary_capture(RAMP, compressed=[content], syntax=uid.JPEGBaseline8Bit))
        assert len(load_page(path, 0, LIMITS, Plan(steps=())).doubts) == doubts


def test_bits_may_be_stored_at_the_upper_end(file: MakeFile) -> None:
    upper = RAMP.astype(np.uint16) << 8
    assert (shades(file(secondary_capture(upper, bits=8, HighBit=15))) == RAMP).all()


def test_padding_and_hot_pixels_do_not_decide_what_is_black_and_white(file: MakeFile) -> None:
    deep = RAMP.astype(np.int16) * 3 + 500
    padded = deep.copy()
    padded[:, :20] = -32768
    hot = np.repeat(np.repeat(deep, 5, axis=0), 5, axis=1)
    hot[7, 7] = 32767
    shown = shades(file(secondary_capture(padded, PixelPaddingValue=-32768)))
    assert np.abs(shown[:, 20:].astype(int) - RAMP[:, 20:]).max() <= 1
    [page] = inspect_file(path := file(secondary_capture(hot)), LIMITS)
    assert (page.width, page.height) == (300, 500)
    assert np.ptp(page_pixels(path, 0, LIMITS)[8:, :, 0]) >= 250


def test_the_pages_of_an_encapsulated_pdf_are_read(file: MakeFile) -> None:
    path = file(encapsulated_pdf(blank_pdf(2)))
    assert len(inspect_file(path, LIMITS)) == 2
    assert page_pixels(path, 1, LIMITS).shape == (150, 150, 3)
    assert failure(file(encapsulated_pdf(locked_pdf(user="x", owner="y")))).code is FailureCode.ENCRYPTED
    assert failure(file(encapsulated_pdf(b"no such thing"))).code is FailureCode.DAMAGED
    assert failure(file(encapsulated_pdf(b""))).code is FailureCode.EMPTY


def test_limits_hold_before_a_frame_is_decoded(file: MakeFile) -> None:
    path = file(secondary_capture(np.stack([RAMP] * 3), frames=3))
    assert failure(path, replace(LIMITS, pages=2)).code is FailureCode.TOO_MANY_PAGES
    assert failure(path, replace(LIMITS, page_pixels=5_999)).code is FailureCode.TOO_LARGE
    assert failure(path, replace(LIMITS, total_pixels=17_999)).code is FailureCode.TOO_LARGE
    assert failure(file(secondary_capture(RAMP, NumberOfFrames=2**31 - 1))).code is FailureCode.TOO_MANY_PAGES


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (report_without_pixels(), FailureCode.UNSUPPORTED_TYPE, "neither a picture nor a PDF"),
        (
            secondary_capture(RED, "RGB", compressed=[b"\0\0\1\0"], syntax=uid.MPEG2MPML),
            FailureCode.UNSUPPORTED_TYPE,
            "compressed as MPEG2 Main Profile / Main Level, which is not decoded here: export it uncompressed",
        ),
        (secondary_capture(RAMP)[:-900], FailureCode.DAMAGED, "cannot be decoded"),
        (secondary_capture(RAMP)[:140], FailureCode.DAMAGED, "does not declare its content"),
        (
            secondary_capture(RAMP, compressed=[jpeg(RAMP)[:200]], syntax=uid.JPEGBaseline8Bit),
            FailureCode.DAMAGED,
            "cannot be decoded",
        ),
    ],
    ids=["report", "film", "cut", "cut in the header", "damaged jpeg"],
)
def test_what_cannot_be_read_says_why_and_nothing_of_the_patient(
    content: bytes, code: FailureCode, says: str, file: MakeFile
) -> None:
    error = failure(file(content))
    assert error.code is code
    assert says in error.found
    assert error.__cause__ is None
    assert "Quillfeather" not in str(error)


def test_names_of_patients_are_not_even_read(
    file: MakeFile, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    strange = secondary_capture(RAMP).replace(PATIENT.encode(), b"Quillfeather\\Alma")
    path = file(strange.replace(b"4711", b"\xff\xfe11"))

    inspect_file(path, LIMITS)
    page_pixels(path, 0, LIMITS)

    assert "Quillfeather" not in caplog.text + "".join(capfd.readouterr())


def test_without_pydicom_the_sentence_says_what_to_install(file: MakeFile) -> None:
    path = file(secondary_capture(RAMP))
    program = f"""
import sys
from pathlib import Path
sys.modules["pydicom"] = None
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import inspect_file, load_page
from pecia_workers.media.pages import Limits, MediaError, Plan
try:
    inspect_file(Path({str(path)!r}), Limits.of(WorkerSettings()))
except MediaError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    said = "unsupported_type: The file is DICOM, which this fleet cannot read: install pecia[dicom]"
    assert told.startswith(said)
