"""Processes as the kernel lists them: whose child, and whether it belongs to a fleet."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process."""

    pid: int
    parent: int
    command: str

    @property
    def is_worker(self) -> bool:
        """Whether it was started to work, not to keep the books of `multiprocessing`."""
        return "spawn_main" in self.command or "pecia_workers." in self.command


def processes() -> Iterator[Process]:
    """Yield every process that runs now; zombies run no more."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _process(entry)):
            yield process


def children(pid: int) -> list[Process]:
    """Return the direct children of a process."""
    return [process for process in processes() if process.parent == pid]


def of_home(home: Path) -> list[Process]:
    """Return the processes of a fleet: those that were told of its home, or work in it."""
    return [process for process in processes() if _knows(process.pid, home)]


def lineage(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, as far as they run."""
    parents = {process.pid: process.parent for process in processes()}
    while pid in parents:
        yield pid
        pid = parents[pid]


def _process(entry: Path) -> Process | None:
    try:
        status = (entry / "stat").read_text()
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    state, parent = status.rpartition(")")[2].split()[:2]
    return None if state == "Z" else Process(int(entry.name), int(parent), command)


def _knows(pid: int, home: Path) -> bool:
    entry = Path(f"/proc/{pid}")
    try:
        return (
            str(home).encode() in (entry / "environ").read_bytes()
            or home in (entry / "cwd").readlink().parents
        )
    except OSError:
        return False
