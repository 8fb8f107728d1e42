"""Which files of ours run while one page is read: `python tests/way.py`, `--list` names them.

From `Client.submit` to its result, on a fleet that has read another page before. A file counts once a function of it is
called; what is imported and not called does not. Processes that never hold the page are left out (upkeep, webhooks,
ingest, of which a picture has no need), and so is the thread that supervises the fleet. Needs no server.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from PIL import Image

from pecia import Client, ReadDocument
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet

_ROOT = Path(__file__).parents[1]
_PACKAGES = tuple(str(_ROOT / top) + os.sep for top in ("producer", "workers", "schemas"))
_AFTER_S = 2.0
"""In which messages are acknowledged, and processes say that they are free."""
_APART = (b"upkeep", b"webhooks", b"ingest", b"flower")
"""Words in the command lines of processes that never hold the page."""
_HOOK = """
import mmap, os, sys, threading

def install(directory, packages):
    log = os.open(directory + "/files", os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # confined processes open none
    with open(directory + "/switch", "rb") as file:
        switch = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    seen = set()

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and switch[:] == b"1" and code.co_filename.startswith(packages):
            known = code.co_name == "<module>" or (os.getpid(), code.co_filename) in seen
            if not known and threading.current_thread().name != "pecia-fleet":
                seen.add((os.getpid(), code.co_filename))
                os.write(log, f"{os.getpid()} {code.co_filename}\\n".encode())

    threading.setprofile(profile)
    sys.setprofile(profile)

if "PYTHON_WAY" in os.environ:
    directory, *packages = os.environ["PYTHON_WAY"].split(os.pathsep)
    install(directory, tuple(packages))
"""


def main() -> None:
    """Read a page and print how many files it passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--list", action="store_true", help="print the files, with the number of their processes"
    )
    shows = parser.parse_args().list
    with tempfile.TemporaryDirectory(prefix="pecia-way-") as scratch:
        processes = _measured(Path(scratch))
    if shows:
        for file, found in sorted(processes.items()):
            sys.stdout.write(f"{found:3} {file}\n")
    lines = sum(len((_ROOT / file).read_text().splitlines()) for file in processes)
    sys.stdout.write(f"{len(processes)} files, {lines:,} lines\n")


def _measured(directory: Path) -> dict[str, int]:
    """Return the files, and in how many processes each ran."""
    directory.chmod(0o711)  # Postgres has an account of its own
    (directory / "sitecustomize.py").write_text(_HOOK)
    switch = directory / "switch"
    switch.write_text("0")
    os.environ |= {"PYTHON_WAY": os.pathsep.join((str(directory), *_PACKAGES)), "PYTHONPATH": str(directory)}
    exec(_HOOK, {})  # noqa: S102  this process, too
    settings = WorkerSettings(engine="simulated:instant", flower_port=0)
    with LocalFleet(directory / "home", settings=settings, announce=False) as fleet:
        fleet.wait_ready()
        stores = fleet.settings
        with Client(
            stores.database_url.get_secret_value(), stores.redis_url.get_secret_value(), stores.payload_url
        ) as client:
            for number in range(2):
                _turn(switch, on=number == 1)
                Image.new("L", (600, 120), 255 - number).save(directory / "page.png")
                client.submit(ReadDocument(directory / "page.png")).result(timeout=60)
                time.sleep(_AFTER_S)
            _turn(switch, on=False)
        found = defaultdict(set)
        for line in (directory / "files").read_text().splitlines():
            process, file = line.split(" ", 1)
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if not any(word in command for word in _APART):
                found[str(Path(file).relative_to(_ROOT))].add(process)
    return {file: len(processes) for file, processes in found.items()}


def _turn(switch: Path, *, on: bool) -> None:
    with switch.open("r+b") as file:  # in place: processes have mapped it
        file.write(b"1" if on else b"0")


if __name__ == "__main__":
    main()
