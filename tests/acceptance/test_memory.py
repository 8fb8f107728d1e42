"""Memory does not grow with pages: a long document goes through as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from pecia import DocumentType, JobState, ReadDocument
from pecia_workers.local import sample_documents as samples

PAGES = 300
ALLOWED_BYTES = 300 * 10**6
PATIENCE_S = 180
A4 = (595, 842)  # points
SESSION = 3  # of /proc/PID/stat, counted from 0 behind the program's name


@pytest.fixture(scope="module")
def long_scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PDF of noisy full-page pictures, as a scanner with a feeder writes it; some lie on their side."""
    directory = tmp_path_factory.mktemp("scan")
    scans = [directory / f"{degrees}.jpg" for degrees in (0, 90, 180, 0, 270)]
    for number, scan in enumerate(scans):
        sample = samples.sample_document(DocumentType.CHART, seed=number)
        samples.write_scan(sample, scan, degrees=int(scan.stem), seed=number)
    document = pypdfium2.PdfDocument.new()
    for number in range(PAGES):
        picture = pypdfium2.PdfImage.new(document)
        picture.load_jpeg(scans[number % len(scans)])
        picture.set_matrix(pypdfium2.PdfMatrix().scale(*A4))
        page = document.new_page(*A4)
        page.insert_obj(picture)
        page.gen_content()
        page.close()
    document.save(directory / "scan.pdf")
    document.close()
    return directory / "scan.pdf"


def memory_of(sessions: set[int]) -> int:
    """Bytes that the processes of these sessions hold, shared ones counted once."""
    return sum(
        proportional_bytes(process)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and session_of(process) in sessions
    )


def session_of(process: Path) -> int | None:
    with suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[SESSION])
    return None


def proportional_bytes(process: Path) -> int:
    with suppress(OSError):  # it has ended meanwhile
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.fixture(scope="module")
def instant_fleet(run_fleet: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    """A fleet whose engine takes no time and no memory: what is left is everything around it."""
    with run_fleet("memory", engine="simulated:instant") as fleet:
        yield fleet


def test_three_hundred_pages_need_little_more_than_none(instant_fleet: Any, long_scan: Path) -> None:
    workers = {instant_fleet.pid("ingest"), instant_fleet.pid("engine")}
    idle = memory_of(workers)

    job = instant_fleet.client.submit(ReadDocument(long_scan))
    most, deadline = idle, time.monotonic() + PATIENCE_S
    while not job.refresh().done and time.monotonic() < deadline:
        most = max(most, memory_of(workers))
        time.sleep(0.2)

    assert job.state is JobState.SUCCEEDED
    assert most - idle < ALLOWED_BYTES
    rows = instant_fleet.query(
        "SELECT p.state, p.attempt, count(r.part_id) FROM parts p LEFT JOIN results r ON r.part_id = p.id"
        " WHERE p.job_id = %s AND p.stage = 'read' GROUP BY p.id",
        job.id,
    )
    assert rows == [("done", 1, 1)] * PAGES
    assert {page.number for page in job.result(timeout=0).pages} == set(range(1, PAGES + 1))
