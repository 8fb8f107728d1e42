"""Decoding in real processes: what goes wrong there stays there."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from pydantic import SecretStr, TypeAdapter
from pydicom import uid

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges
from pecia_schemas.payloads import PayloadMissingError
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media import Decoder, Limits, MediaError, PageImage
from pecia_workers.media.decoding import initialize_process
from pecia_workers.media.frames import Form
from pecia_workers.media.pages import Clip, Stretch, VideoInfo
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError
from pecia_workers.media.turns import PostponedError, Turn
from tests.shared.decoded import page_pixels
from tests.shared.dicom_files import encapsulated_pdf, secondary_capture
from tests.shared.forking import forked_for, templates_of
from tests.shared.hand_made_pdfs import forms_of_forms, locked_pdf, typeset, written_pdf
from tests.shared.limits import WAIT_S, eventually, until
from tests.shared.videos import second_of, video

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]

MEGABYTE = 1024**2
ALL_MEMORY = MEGABYTE**2


@asynccontextmanager
async def decoding(**changes: Any) -> AsyncIterator[Decoder]:
    decoder = Decoder(WorkerSettings(decode_processes=2).model_copy(update=changes))
    await decoder.start()
    try:
        yield decoder
    finally:
        await decoder.stop()


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    Image.new("RGB", (100, 100), "white").save(path, "PNG")
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture that takes most of a second to decode."""
    path = tmp_path_factory.mktemp("slow") / "slow"
    noise = np.random.default_rng(0).integers(0, 255, (5000, 6000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "PNG", compress_level=1)
    return path


async def failure(decoder: Decoder, path: Path) -> FailureCode:
    with pytest.raises(MediaError) as caught:
        await decoder.page(path, 0)
    return caught.value.code


async def test_every_kind_is_decoded_in_a_confined_process(tmp_path: Path) -> None:
    pillow_heif.register_heif_opener()
    picture = Image.new("RGB", (60, 100), "white")
    pictures = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PDF", "GIF", "HEIF", "AVIF", "JPEG2000", "PPM", "PCX"]
    for form in pictures:
        options = {"no_jp2": True} if form == "JPEG2000" else {}
        picture.save(tmp_path / form, form, **options)
    videos = {"mp4": "mpeg4", "matroska": "mpeg4", "webm": "vp9", "avi": "mpeg4", "mpegts": "mpeg4"}
    for form, codec in videos.items():
        (tmp_path / form).write_bytes(video(1, form=form, codec=codec))
    jpeg_2000 = (tmp_path / "JPEG2000").read_bytes()
    capture = secondary_capture(
        np.asarray(picture), "RGB", compressed=[jpeg_2000], syntax=uid.JPEG2000Lossless
    )
    (tmp_path / "DICOM").write_bytes(capture)
    (tmp_path / "PDF in DICOM").write_bytes(encapsulated_pdf(locked_pdf(user="word", owner="other")))
    password = SecretStr("word")

    async with decoding(decode_processes=1) as decoder:
        for name in (*pictures, "DICOM", "PDF in DICOM"):
            path = tmp_path / name
            (info,) = await decoder.inspect(path, PageRanges.parse("1"), password)
            page = await decoder.page(path, 0, password=password)
            assert page.pixels.shape == (info.height, info.width, 3), name
            assert page.blank, name
        for form in videos:
            clip = await decoder.clip(tmp_path / form, Stretch(start=0, end=1))
            assert len(clip.frames), form


async def test_a_confined_process_reads_suspect_glyphs_of_a_layer_again(tmp_path: Path) -> None:
    lines = typeset(["Metformin 850 mg was continued, ramipril 5 mg begun.", "Follow-up in six weeks."])
    for name, means in (("sound", {"5": "5"}), ("misnamed", {"5": "6"})):
        (tmp_path / name).write_bytes(written_pdf(lines, means=means))
    async with decoding() as decoder:
        assert (await decoder.page(tmp_path / "sound", 0)).blocks
        assert not (await decoder.page(tmp_path / "misnamed", 0)).blocks


async def test_what_libraries_print_is_not_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fax"
    noise = np.random.default_rng(1).integers(0, 256, (400, 400), dtype=np.uint8)
    Image.fromarray(noise).convert("1").save(path, "TIFF", compression="group4")
    content = bytearray(path.read_bytes())
    content[200:400:7] = bytes(29)
    path.write_bytes(content)
    page_pixels(path, 0, Limits.of(WorkerSettings()))
    said_here = capfd.readouterr().err

    async with decoding(decode_processes=1) as decoder:
        await decoder.page(path, 0)

    assert "Fax4Decode" in said_here
    assert capfd.readouterr().err == ""


def test_a_decoder_loads_what_few_files_need_when_the_first_of_them_comes() -> None:
    asked = (
        "import sys, pecia_workers.media.decoder; print({'pydicom', 'pillow_heif', 'av'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


async def test_decoding_that_takes_too_long_ends_alone(small: Path) -> None:
    async with decoding(decode_timeout=timedelta(seconds=5)) as decoder:
        os.kill(forked_for()[0], signal.SIGSTOP)
        pages = (decoder.page(small, 0) for _ in range(2))
        one, other = await asyncio.gather(*pages, return_exceptions=True)
        late, page = (one, other) if isinstance(one, MediaError) else (other, one)
        assert isinstance(late, MediaError)
        assert late.code is FailureCode.DECODE_TIMEOUT
        assert isinstance(page, PageImage)
        assert (await decoder.page(small, 0)).blank


async def test_a_decoder_that_hits_its_memory_limit_says_too_large(slow: Path, small: Path) -> None:
    async with decoding(decode_memory_bytes=100 * MEGABYTE) as decoder:
        assert await failure(decoder, slow) is FailureCode.TOO_LARGE
        assert (await decoder.page(small, 0)).blank


async def kill_at_work(document: Path, former: int = 0) -> int:
    """Kill the one process, other than the former one, that has this document open."""

    def at_work() -> list[int]:
        return [pid for pid in forked_for() if pid != former and document in opened_by(pid)]

    pid, *_ = await until(at_work)
    os.kill(pid, signal.SIGKILL)
    return pid


def opened_by(pid: int) -> set[Path]:
    opened = set()
    with suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                opened.add(descriptor.readlink())
    return opened


async def test_a_page_whose_process_the_system_kills_is_decoded_by_another(slow: Path) -> None:
    async with decoding(decode_processes=1) as decoder:
        page = asyncio.create_task(decoder.page(slow, 0))
        await kill_at_work(slow)
        assert (await page).pixels.any()


async def test_a_page_that_kills_two_processes_is_damaged_alone(poison: Path, small: Path) -> None:
    async with decoding(decode_processes=1) as decoder:
        lost = asyncio.create_task(failure(decoder, poison))
        await kill_at_work(poison, former=await kill_at_work(poison))
        assert await lost is FailureCode.DAMAGED
        assert (await decoder.page(small, 0)).blank


async def test_processes_killed_while_idle_are_replaced_unnoticed(small: Path) -> None:
    async with decoding() as decoder:
        for pid in forked_for():
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        pages = await asyncio.gather(*(decoder.page(small, 0) for _ in range(6)))
        assert all(page.blank for page in pages)


async def test_a_cancelled_page_frees_its_place(slow: Path, small: Path) -> None:
    async with decoding(decode_processes=1) as decoder:
        given_up = asyncio.create_task(decoder.page(slow, 0))
        queued = asyncio.create_task(decoder.page(slow, 0))
        await asyncio.sleep(0.1)
        given_up.cancel()
        queued.cancel()
        async with asyncio.timeout(WAIT_S):
            await decoder.page(small, 0)


@pytest.fixture
def poison(tmp_path: Path) -> Path:
    """A PDF of a few kilobytes whose pages take minutes to draw, and 500 MB a second: forms in forms in forms."""
    path = tmp_path / "poison"
    path.write_bytes(forms_of_forms(9))
    return path


async def test_slow_documents_leave_a_process_to_others(poison: Path, small: Path) -> None:
    async with decoding(decode_memory_bytes=ALL_MEMORY) as decoder:
        pages = [
            asyncio.create_task(
                decoder.page(poison, 0, turn=Turn(flow=page % 2, document="poison"))  # ahead of what follows
            )
            for page in range(4)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            for _ in range(3):
                assert (await decoder.page(small, 0, turn=Turn(rank=2, flow="good"))).blank
        assert not any(page.done() for page in pages)
        for page in pages:
            page.cancel()
        await asyncio.wait(pages)


async def test_slow_parts_beyond_their_share_of_a_worker_are_postponed(poison: Path) -> None:
    async with decoding(decode_memory_bytes=ALL_MEMORY) as decoder:
        decoder.share(3)
        pages = [asyncio.create_task(decoder.page(poison, 0, turn=Turn(document="poison"))) for _ in range(4)]
        postponed, others = set[asyncio.Task[PageImage]](), set(pages)
        async with asyncio.timeout(WAIT_S):
            while len(postponed) < 2:
                ended, others = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                postponed |= ended
        assert [type(page.exception()) for page in postponed] == [PostponedError, PostponedError]
        for page in others:
            page.cancel()
        await asyncio.wait(others)


async def test_a_document_that_is_deleted_under_its_job_is_missing(small: Path) -> None:
    async with decoding() as decoder:
        os.unlink(small)  # noqa: PTH108  a disk that is this machine's
        with pytest.raises(PayloadMissingError):
            await decoder.page(small, 0)


async def test_a_store_that_is_slow_to_open_a_document_holds_no_process(small: Path, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    async with decoding(decode_processes=1) as decoder:
        opened = [asyncio.create_task(decoder.page(stuck, 0)) for _ in range(3)]
        async with asyncio.timeout(WAIT_S):
            assert (await decoder.page(small, 0)).blank
        with stuck.open("r+b", buffering=0):  # they open now
            await asyncio.wait(opened)


@pytest.mark.usefixtures("own_templates")
async def test_a_template_that_stands_still_is_replaced_and_holds_nothing_up(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pecia_workers.media.processes._TEMPLATE_TIMEOUT_S", 5.0)
    others = set(templates_of())
    async with decoding(decode_processes=1) as decoder:
        (template,) = set(templates_of()) - others
        (process,) = forked_for()
        os.kill(template, signal.SIGSTOP)
        os.kill(process, signal.SIGKILL)
        page = asyncio.create_task(decoder.page(small, 0))
        turns = 0
        while is_running(template):
            await asyncio.sleep(0.05)
            turns += 1
        assert turns > 1
        assert (await page).blank


def test_processes_die_with_a_killed_parent() -> None:
    script = (
        "import asyncio, time\n"
        "from pecia_schemas.settings import WorkerSettings\n"
        "from pecia_workers.media import Decoder\n"
        "async def main():\n"
        "    await Decoder(WorkerSettings(decode_processes=2)).start()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        processes = [*templates_of(parent.pid), *forked_for(parent.pid)]
        parent.kill()

    assert len(processes) == len(("template", "decoder", "decoder"))
    eventually(lambda: not any(map(is_running, processes)), what="The end of the processes")


@pytest.mark.usefixtures("own_templates")
async def test_pages_are_decoded_though_what_starts_the_processes_was_killed(small: Path) -> None:
    others = set(templates_of())
    async with decoding() as decoder:
        (template,) = set(templates_of()) - others
        os.kill(template, signal.SIGKILL)
        pages = await asyncio.gather(*(decoder.page(small, 0) for _ in range(6)))
        assert all(page.blank for page in pages)
        assert len(set(templates_of()) - others - {template}) == 1


async def test_as_many_pages_are_held_as_there_is_memory_for(small: Path) -> None:
    """Each is an open file, of which a process may have few unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(int(one) for one in os.listdir("/proc/self/fd"))  # noqa: PTH208  descriptors, no files
    most = last + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        async with decoding() as decoder:
            held = [await decoder.page(small, 0) for _ in range(most)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(page.blank for page in held)


async def test_a_process_killed_at_any_moment_blocks_no_other_call() -> None:
    """Also while it takes in its arguments or hands back its answer, with a lock in its hand."""
    big = np.full((1000, 8000), 7, dtype=np.uint8)
    copied = partial(PageImage, pixels=big)
    form = Form(header=TypeAdapter(dict[str, Any]), build=itemgetter("pixels"), array="pixels", most=big.size)

    processes = BoundedProcesses(2, initialize_process, Limits.of(WorkerSettings()))
    await processes.start()
    try:
        lost = 0
        for moment in range(25):
            calls = [asyncio.create_task(processes.call(form, copied, timeout=WAIT_S)) for _ in range(4)]
            await asyncio.sleep(moment / 1000)
            for process in list(processes._busy)[:1]:
                process.forked.kill()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            lost += sum(isinstance(answer, ProcessDiedError) for answer in answers)
            whole = [answer for answer in answers if not isinstance(answer, ProcessDiedError)]
            assert all(np.array_equal(np.asarray(answer), big) for answer in whole)
    finally:
        await processes.stop()
    assert 1 <= lost <= 25


def test_a_clip_comes_from_its_process_within_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "clip"
    path.write_bytes(video(4, size=(640, 360), codec="h264"))

    async def story() -> tuple[VideoInfo, Clip]:
        async with decoding(decode_memory_bytes=256 * MEGABYTE, decode_processes=1) as decoder:
            return await decoder.probe(path), await decoder.clip(path, Stretch(start=0, end=4))

    info, clip = asyncio.run(story())

    assert info.duration == 4
    assert clip.frames.shape == (16, 360, 640, 3)
    assert (second_of(clip.frames[0]), second_of(clip.frames[-1])) == (0, 3)
