"""What a stranger's file could do if it took over the process that decodes it: next to nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
from PIL import Image
from pydantic import TypeAdapter

from limits import WAIT_S
from pecia_schemas.settings import WorkerSettings
from pecia_workers.confinement import kernel_confines
from pecia_workers.media import Decoder, Limits
from pecia_workers.media.clips import Stretch
from pecia_workers.media.decoding import initialize_process
from pecia_workers.media.frames import CallFailedError, plain
from pecia_workers.media.processes import BoundedProcesses
from videos import video

ANYTHING = plain(TypeAdapter(Any))


def in_a_decoder(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a process that is ready to decode."""

    async def story() -> Any:
        processes = BoundedProcesses(1, initialize_process, Limits.of(WorkerSettings()))
        try:
            return await processes.call(ANYTHING, function, *args, timeout=WAIT_S)
        finally:
            await processes.stop()

    return asyncio.run(story())


def refused() -> AbstractContextManager[Any]:
    return pytest.raises(CallFailedError, match="PermissionError")


def test_a_decoder_reaches_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, refused():
        in_a_decoder(socket.create_connection, server.getsockname())


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK])
def test_a_decoder_opens_no_socket_of_any_family(family: socket.AddressFamily) -> None:
    with refused():
        in_a_decoder(socket.socket, family)


def test_a_decoder_starts_no_program() -> None:
    with refused():
        in_a_decoder(subprocess.run, ["/bin/true"])


def test_a_decoder_fills_no_disk(tmp_path: Path) -> None:
    with pytest.raises(CallFailedError, match="OSError"):
        in_a_decoder(os.truncate, _touched(tmp_path), 65 * 1024**2)


def _touched(directory: Path) -> str:
    path = directory / "file"
    path.touch()
    return str(path)


def test_a_decoder_that_crashes_leaves_no_picture_of_its_memory() -> None:
    assert in_a_decoder(resource.getrlimit, resource.RLIMIT_CORE) == [0, 0]


def test_threads_that_libraries_started_are_confined_too() -> None:
    script = (
        "import socket, threading\n"
        "from pecia_workers.confinement import confine\n"
        "begun, go = threading.Event(), threading.Event()\n"
        "def reach():\n"
        "    begun.set(); go.wait()\n"
        "    try: socket.socket()\n"
        "    except PermissionError: print('refused')\n"
        "threading.Thread(target=reach).start()\n"
        "begun.wait(); confine(); go.set()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "refused\n"


def test_every_kind_of_file_is_decoded_all_the_same(tmp_path: Path) -> None:
    kinds = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PDF")
    for kind in kinds:
        Image.new("RGB", (120, 80), "white").save(tmp_path / kind, kind)
    containers = ("mp4", "matroska", "webm", "avi", "mpegts")
    for form in containers:
        codec = "vp9" if form == "webm" else "mpeg4"
        (tmp_path / form).write_bytes(video(1, form=form, codec=codec))

    async def story() -> None:
        decoder = Decoder(WorkerSettings(decode_processes=1))
        await decoder.start()
        try:
            for kind in kinds:
                assert (await decoder.page(tmp_path / kind, 0)).blank, kind
            for form in containers:
                clip = await decoder.clip(tmp_path / form, Stretch(start=0, end=1))
                assert len(clip.frames), form
        finally:
            await decoder.stop()

    asyncio.run(story())


def test_this_machines_kernel_confines() -> None:
    assert kernel_confines()


def test_a_machine_without_the_filter_says_so_once() -> None:
    async def story() -> int:
        processes = BoundedProcesses(2, initialize_process, Limits.of(WorkerSettings()))
        try:
            for _ in range(2):
                processes._note(confined=False)
        finally:
            await processes.stop()
        return len([line for line in logged if line["event"] == "processes_unconfined"])

    with structlog.testing.capture_logs() as logged:
        assert asyncio.run(story()) == 1


def test_an_unknown_processor_is_left_as_it_is() -> None:
    script = (
        "import platform, socket\n"
        "platform.machine = lambda: 's390x'\n"
        "from pecia_workers.confinement import confine\n"
        "print(confine()); socket.socket().close()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "False\n"
