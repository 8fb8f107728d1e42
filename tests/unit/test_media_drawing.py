"""Pages drawn for PDFs: turned as they were when they were read, compressed as they deserve, decoded apart."""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.media import Encoding, NoPictureError, PagePictures
from pecia_schemas.settings import SettingsError
from pecia_workers.media import pictures as drawn_apart
from pecia_workers.media.decoding import prepare
from pecia_workers.media.pictures import as_read, compressed, open_pictures
from pecia_workers.processes.template import Forked
from tests.shared.command import ran
from tests.shared.limits import eventually

pytestmark = pytest.mark.gate


def page(slope: float = 0.0, turns: int = 0) -> NDArray[np.uint8]:
    """Return a page of print, from edge to edge, that slopes, lies on its side or stands on its head."""
    image = Image.new("RGB", (1000, 1400), "white")
    for number in range(24):
        text = f"Zeile {number}: Blutdruck 120/80, Puls 64, Temperatur 36,8 am Morgen"
        place, font = (4, 50 * number + 60), ImageFont.load_default(26)
        ImageDraw.Draw(image).text(place, f"{text}. {text}", fill="black", font=font)
    sloping = image.rotate(-slope, resample=Image.Resampling.BICUBIC, fillcolor="white")
    return np.ascontiguousarray(np.rot90(np.asarray(sloping), turns))


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawing") / "scan.tif"
    frames = [Image.fromarray(page()), Image.fromarray(page(turns=1))]
    frames[0].save(path, "TIFF", save_all=True, append_images=frames[1:])
    return path


@pytest.fixture(scope="module")
def pictures(scan: Path) -> Iterator[PagePictures]:
    with open_pictures(scan, password=None, quality=75) as pictures:
        yield pictures


def helper_of(pictures: Any) -> Forked:
    process: Forked = pictures._processes._idle[0].forked
    return process


@pytest.mark.parametrize(("slope", "turns"), [(0, 0), (2.5, 0), (-4, 0), (0, 1), (0, 2), (3, 3)])
def test_a_page_is_drawn_exactly_as_the_engine_saw_it(slope: float, turns: int) -> None:
    pixels = page(slope, turns)
    seen = prepare(pixels)
    assert (bool(seen.skew), bool(seen.rotation)) == (bool(slope), bool(turns))
    assert (seen.pixels.size > pixels.size) is bool(slope), "what would be cut off is not"
    assert np.array_equal(as_read(pixels, seen.rotation, seen.skew), seen.pixels)


def test_a_page_is_compressed_as_black_and_white_grey_or_colour_as_it_deserves() -> None:
    encoding, data = compressed(np.where(page() > 127, np.uint8(255), np.uint8(0)), 75)
    assert (encoding, len(data) < 40_000) == (Encoding.BILEVEL, True), "nothing is lost"

    tinted = page().astype(np.int16) - np.array([0, 6, 12], dtype=np.int16)
    encoding, data = compressed(tinted.clip(0, 255).astype(np.uint8), 75)
    assert (encoding, Image.open(io.BytesIO(data)).mode) == (Encoding.GREY, "L"), "almost grey"

    stamped = page().copy()
    stamped[1300:1320, 800:820] = (200, 20, 20)
    encoding, data = compressed(stamped, 75)
    assert encoding is Encoding.RGB
    stamp = np.asarray(Image.open(io.BytesIO(data)))[1310, 810].astype(int)
    assert abs(stamp - (200, 20, 20)).max() < 12


def test_pages_are_decoded_in_another_process(pictures: PagePictures) -> None:
    first, second = (pictures(number, rotation=0, skew=0.0) for number in (1, 2))
    assert (first.width, first.height, first.dpi) == (1000, 1400, None)
    assert (second.width, second.height) == (1400, 1000)
    assert Image.open(io.BytesIO(pictures(2, rotation=90, skew=0.0).data)).size == (1000, 1400)


def test_a_page_that_is_not_there_costs_itself_alone(pictures: PagePictures) -> None:
    with pytest.raises(NoPictureError):
        pictures(3, rotation=0, skew=0.0)
    assert pictures(1, rotation=0, skew=0.0).width == 1000


def test_they_are_decoded_where_the_network_is_out_of_reach(pictures: PagePictures) -> None:
    pictures(1, rotation=0, skew=0.0)
    status = Path(f"/proc/{helper_of(pictures).pid}/status").read_text()
    assert "\nSeccomp:\t2\n" in status
    assert "\nNoNewPrivs:\t1\n" in status


def test_a_process_that_dies_costs_one_page(scan: Path) -> None:
    def kill_at_work(process: Forked, pictures: Any) -> None:
        eventually(lambda: pictures._processes._busy)
        process.kill()

    with open_pictures(scan, password=None, quality=75) as pictures:
        pictures(1, rotation=0, skew=0.0)
        process = helper_of(pictures)
        os.kill(process.pid, signal.SIGSTOP)  # until the next page is in flight
        threading.Thread(target=kill_at_work, args=(process, pictures)).start()
        with pytest.raises(NoPictureError):
            pictures(1, rotation=0, skew=0.0)
        assert pictures(2, rotation=0, skew=0.0).width == 1400


def test_a_page_that_takes_too_long_is_given_up(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pictures(scan, password=None, quality=75) as pictures:
        pictures(1, rotation=0, skew=0.0)
        process = helper_of(pictures)
        monkeypatch.setattr(pictures, "_timeout", 0.05)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(NoPictureError):
            pictures(1, rotation=0, skew=0.0)
        assert process.returncode == -signal.SIGKILL


def test_a_script_without_a_main_guard_is_not_run_again(scan: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('runs')\n"
        "from pathlib import Path\n"
        f"from {drawn_apart.__name__} import open_pictures\n"
        f"with open_pictures(Path({str(scan)!r}), password=None, quality=75) as pictures:\n"
        "    print(pictures(1, rotation=0, skew=0.0).width)\n"
    )
    done = ran(sys.executable, script)
    assert (done.stdout, done.stderr) == ("runs\n1000\n", "")


def test_a_wrong_setting_is_told_before_any_drawing(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_RENDER_DPI", "7")
    with (
        pytest.raises(SettingsError, match="PECIA_RENDER_DPI"),
        open_pictures(scan, password=None, quality=75),
    ):
        pass
