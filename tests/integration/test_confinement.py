"""What a stranger's file could do if it took over the process that decodes it: next to nothing."""

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

import pecia_workers
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media import Limits
from pecia_workers.media.decoding import initialize_process
from pecia_workers.media.frames import CallFailedError, plain
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError
from pecia_workers.processes.confinement import Guard, missing_guards
from tests.shared import hostile_code
from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate

ANYTHING = plain(TypeAdapter(Any))


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def in_a_decoder() -> Iterator[Call]:
    """Calls a function in a process that is ready to decode, and returns what it returns."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("PYTHONPATH", str(Path(hostile_code.__file__).parents[2]))
        patch.setenv("PYTHON_WORKER", str(os.getpid()))
        patch.setenv("PECIA_DATABASE_URL", "postgresql://fleet:PASSWORD@db/pecia")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "PASSWORD")
        limits = Limits.of(WorkerSettings())
        processes = BoundedProcesses(1, initialize_process, limits, memory_bytes=256 * 1024**2)
        yield lambda *call: runner.run(processes.call(ANYTHING, *call, timeout=WAIT_S))
        runner.run(processes.stop())


def refused() -> AbstractContextManager[Any]:
    return pytest.raises(CallFailedError, match="PermissionError")


@pytest.mark.parametrize(
    "call",
    [
        *(
            (socket.socket, family)
            for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
        ),
        (subprocess.run, ["/bin/true"]),
        (os.fork,),
        (hostile_code.kill_parent,),
        *((hostile_code.read_parent, name) for name in ("environ", "mem", "maps", "cmdline")),
        (hostile_code.read, "/etc/passwd"),
        (hostile_code.read, "/proc/self/environ"),
    ],
    ids=lambda call: " ".join(getattr(one, "__name__", str(one)) for one in call),
)
def test_a_decoder_reaches_no_network_program_or_process(in_a_decoder: Call, call: tuple[Any, ...]) -> None:
    with refused():
        in_a_decoder(*call)


def test_a_decoder_may_start_threads(in_a_decoder: Call) -> None:
    assert in_a_decoder(hostile_code.start_thread)


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
    with refused():
        in_a_decoder(hostile_code.read, str(other))
    assert in_a_decoder(hostile_code.read, hostile_code.__file__)


CONFINED = """
import sys
from pathlib import Path
from pecia_workers.processes.confinement import confine_files
assert confine_files()
import colorsys
for path in sys.argv[1:]:
    try: Path(path).read_bytes()
    except PermissionError: print("refused")
"""


@pytest.mark.parametrize("interpreter", [sys.executable, "/usr/bin/python3"])
def test_a_confined_process_reads_nothing_else_of_an_installation(interpreter: str) -> None:
    """Also where the prefix of the installation is `/usr`, as for a system's own Python."""
    if not os.access(interpreter, os.X_OK):
        pytest.skip("this system has no Python of its own")
    about = "import sys; print(sys.prefix, sys.base_prefix, sys.version_info >= (3, 11), sep='\\n')"
    *prefixes, runs_pecia = subprocess.check_output([interpreter, "-c", about], text=True).splitlines()
    if runs_pecia == "False":
        pytest.skip("Pecia does not run on this system's own Python")
    private = [
        *(
            _first_file(Path(prefix) / below)
            for prefix in prefixes
            for below in ("bin", "share/doc", "local/bin")
        ),
        Path("/etc/passwd"),
        *(path for path in Path.home().iterdir() if path.is_file()),
    ]
    files = [str(path) for path in private if path]
    done = subprocess.run(
        [interpreter, "-P", "-c", CONFINED, *files],
        env={"PYTHONPATH": str(Path(pecia_workers.__file__).parents[1])},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["refused"] * len(files)


def _first_file(directory: Path) -> Path | None:
    return next((path for path in directory.rglob("*") if path.is_file()), None)


@pytest.mark.parametrize("place", ["document", "new"])
def test_a_decoder_writes_to_no_file(in_a_decoder: Call, tmp_path: Path, place: str) -> None:
    (tmp_path / "document").write_text("as it was")
    with refused():
        in_a_decoder(hostile_code.write, str(tmp_path / place))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["as it was"]


def test_what_a_decoder_pickles_is_not_opened(in_a_decoder: Call, tmp_path: Path) -> None:
    with pytest.raises(ProcessDiedError):
        in_a_decoder(hostile_code.answer_with, hostile_code.bomb(tmp_path / "escaped"))
    assert not (tmp_path / "escaped").exists()


def test_a_decoder_that_crashes_leaves_no_picture_of_its_memory(in_a_decoder: Call) -> None:
    assert in_a_decoder(resource.getrlimit, resource.RLIMIT_CORE) == [0, 0]


FILTER_ALONE = """
import os, sys
from pecia_workers.processes.confinement import confine_calls
confine_calls()
for call in (lambda: open(sys.argv[1], "w"), lambda: os.mkdir(sys.argv[1]), os.fork):
    try: call()
    except PermissionError: print("refused")
"""
THREADS_OF_LIBRARIES = """
import socket, threading
from pecia_workers.processes.confinement import confine_calls
begun, go = threading.Event(), threading.Event()
def reach():
    begun.set(); go.wait()
    try: socket.socket()
    except PermissionError: print("refused")
threading.Thread(target=reach).start()
begun.wait(); confine_calls(); go.set()
"""
UNKNOWN_PROCESSOR = """
import platform, socket
platform.machine = lambda: "s390x"
from pecia_workers.processes.confinement import confine_calls
print(confine_calls()); socket.socket().close()
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [(FILTER_ALONE, "refused\n" * 3), (THREADS_OF_LIBRARIES, "refused\n"), (UNKNOWN_PROCESSOR, "False\n")],
    ids=["writes, without Landlock", "threads that libraries started", "not on an unknown processor"],
)
def test_the_system_call_filter_refuses(tmp_path: Path, script: str, told: str) -> None:
    command = [sys.executable, "-c", script, str(tmp_path / "new")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == told


def test_this_machines_kernel_confines() -> None:
    assert missing_guards() == ()


def test_a_machine_without_the_filter_says_so_once() -> None:
    async def story() -> int:
        processes = BoundedProcesses(2, initialize_process, Limits.of(WorkerSettings()))
        try:
            processes._missing.add(Guard.LANDLOCK)
            await processes.start()
        finally:
            await processes.stop()
        return len([line for line in logged if line["event"] == "processes_unconfined"])

    with structlog.testing.capture_logs() as logged:
        assert asyncio.run(story()) == 1
