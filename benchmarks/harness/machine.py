"""On what was measured: the machine, and the versions of all that took part."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.sides import BATCHES, CELERY, DRAMATIQ, PECIA, PROCRASTINATE, TASKIQ
from pecia_workers.local.servers import postgres_programs, redis_program

LIBRARIES = ("pecia", "celery", "kombu", "redis", "sqlalchemy", "psycopg")
SIDES = (PECIA, CELERY, BATCHES, DRAMATIQ, PROCRASTINATE, TASKIQ)
_ASK = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def machine() -> dict[str, str]:
    """Return what a reader wants to know of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def short_name() -> str:
    """Return the machine's name in that of a file."""
    return f"{platform.machine()}-{os.cpu_count()}-cores"


def versions() -> dict[str, str]:
    """Return the versions of Python, the servers, our libraries and the rivals that are installed."""
    found = {"python": platform.python_version()}
    found["postgres"] = _said([str(postgres_programs() / "postgres"), "--version"]).split()[-1]
    found["redis-server"] = _said([str(redis_program()), "--version"]).partition("v=")[2].split()[0]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    for side in SIDES:
        if side.is_rival and side.is_there:
            found[side.package] = _said([str(side.python), "-c", _ASK, side.package])
    return found


@cache
def commit() -> str:
    """Return the commit that was measured, marked if the tree differed from it before results were written."""
    said = _said(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"])
    return said or "unknown"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
