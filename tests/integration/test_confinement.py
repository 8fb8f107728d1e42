"""What a stranger's file could do if it took over the process that decodes it: next to nothing."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import TypeAdapter

import hostile_code
from limits import WAIT_S
from pecia_schemas.settings import WorkerSettings
from pecia_workers.confinement import Guard, missing_guards
from pecia_workers.media import Limits
from pecia_workers.media.decoding import initialize_process
from pecia_workers.media.frames import CallFailedError, plain
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

pytestmark = pytest.mark.gate

ANYTHING = plain(TypeAdapter(Any))


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def in_a_decoder() -> Iterator[Call]:
    """Calls a function in a process that is ready to decode, and returns what it returns."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("PYTHONPATH", str(Path(hostile_code.__file__).parent))
        patch.setenv("PYTHON_WORKER", str(os.getpid()))
        patch.setenv("PECIA_DATABASE_URL", "postgresql://fleet:PASSWORD@db/pecia")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "PASSWORD")
        limits = Limits.of(WorkerSettings())
        processes = BoundedProcesses(1, initialize_process, limits, memory_bytes=256 * 1024**2)
        yield lambda *call: runner.run(processes.call(ANYTHING, *call, timeout=WAIT_S))
        runner.run(processes.stop())


def refused() -> AbstractContextManager[Any]:
    return pytest.raises(CallFailedError, match="PermissionError")


def test_a_decoder_reaches_no_server(in_a_decoder: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, refused():
        in_a_decoder(socket.create_connection, server.getsockname())


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK])
def test_a_decoder_opens_no_socket_of_any_family(in_a_decoder: Call, family: socket.AddressFamily) -> None:
    with refused():
        in_a_decoder(socket.socket, family)


def test_a_decoder_starts_no_program(in_a_decoder: Call) -> None:
    with refused():
        in_a_decoder(subprocess.run, ["/bin/true"])


@pytest.mark.parametrize("call", [os.fork, hostile_code.kill_parent])
def test_a_decoder_starts_and_touches_no_other_process(in_a_decoder: Call, call: Callable[[], Any]) -> None:
    with refused():
        in_a_decoder(call)


def test_a_decoder_may_start_threads(in_a_decoder: Call) -> None:
    assert in_a_decoder(hostile_code.start_thread)


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "cmdline"])
def test_a_decoder_reads_nothing_of_its_worker(in_a_decoder: Call, name: str) -> None:
    with refused():
        in_a_decoder(hostile_code.read_parent, name)


def test_a_decoder_writes_nothing_into_its_worker(in_a_decoder: Call) -> None:
    secret = ctypes.create_string_buffer(b"a key of the fleet")

    with refused():
        in_a_decoder(hostile_code.overwrite_parent, ctypes.addressof(secret), b"OVERWRITTEN")

    assert secret.value == b"a key of the fleet"


def test_a_decoder_inherits_no_secret(in_a_decoder: Call) -> None:
    names = in_a_decoder(hostile_code.own_environment)

    assert "PATH" in names
    assert not [name for name in names if name.startswith(("PECIA_", "AWS_"))]


def test_a_decoder_opens_no_file_but_code(in_a_decoder: Call, tmp_path: Path) -> None:
    other = tmp_path / "document of somebody else"
    other.write_bytes(b"12345")

    for path in (str(other), "/etc/passwd", "/proc/self/environ"):
        with refused():
            in_a_decoder(hostile_code.read, path)
    assert in_a_decoder(hostile_code.read, hostile_code.__file__)


@pytest.mark.parametrize("place", ["document", "new"])
def test_a_decoder_writes_to_no_file(in_a_decoder: Call, tmp_path: Path, place: str) -> None:
    (tmp_path / "document").write_text("as it was")

    with refused():
        in_a_decoder(hostile_code.write, str(tmp_path / place))

    assert [path.read_text() for path in tmp_path.iterdir()] == ["as it was"]


def test_the_filter_alone_lets_no_file_be_written(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from pecia_workers.confinement import confine_calls\n"
        "confine_calls()\n"
        "for call in (lambda: open(sys.argv[1], 'w'), lambda: os.mkdir(sys.argv[1]), os.fork):\n"
        "    try: call()\n"
        "    except PermissionError: print('refused')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "new")], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "refused\n" * 3


def test_what_a_decoder_pickles_is_not_opened(in_a_decoder: Call, tmp_path: Path) -> None:
    with pytest.raises(ProcessDiedError):
        in_a_decoder(hostile_code.answer_with, hostile_code.bomb(tmp_path / "escaped"))

    assert not (tmp_path / "escaped").exists()


def test_a_decoder_that_crashes_leaves_no_picture_of_its_memory(in_a_decoder: Call) -> None:
    assert in_a_decoder(resource.getrlimit, resource.RLIMIT_CORE) == [0, 0]


def test_threads_that_libraries_started_are_confined_too() -> None:
    script = (
        "import socket, threading\n"
        "from pecia_workers.confinement import confine_calls\n"
        "begun, go = threading.Event(), threading.Event()\n"
        "def reach():\n"
        "    begun.set(); go.wait()\n"
        "    try: socket.socket()\n"
        "    except PermissionError: print('refused')\n"
        "threading.Thread(target=reach).start()\n"
        "begun.wait(); confine_calls(); go.set()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "refused\n"


def test_this_machines_kernel_confines() -> None:
    assert missing_guards() == ()


def test_a_machine_without_the_filter_says_so_once() -> None:
    async def story() -> int:
        processes = BoundedProcesses(2, initialize_process, Limits.of(WorkerSettings()))
        try:
            for _ in range(2):
                processes._note([Guard.LANDLOCK])
        finally:
            await processes.stop()
        return len([line for line in logged if line["event"] == "processes_unconfined"])

    with structlog.testing.capture_logs() as logged:
        assert asyncio.run(story()) == 1


def test_an_unknown_processor_is_left_as_it_is() -> None:
    script = (
        "import platform, socket\n"
        "platform.machine = lambda: 's390x'\n"
        "from pecia_workers.confinement import confine_calls\n"
        "print(confine_calls()); socket.socket().close()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "False\n"
