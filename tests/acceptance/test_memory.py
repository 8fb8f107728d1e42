"""Memory does not grow with pages: a long document goes through as a stream."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pikepdf
import pytest
from pikepdf import Dictionary, Name
from PIL import Image

from pecia import DocumentType, Job, JobState, ReadDocument
from pecia_workers.media import samples
from tests.shared.fixture_types import RunFleet
from tests.shared.limits import WAIT_S
from tests.shared.memory import memory_of

pytestmark = pytest.mark.gate

SHORT, LONG = 20, 150
"""Pages. To keep the pixels of each, 1.9 MB, would take 250 MB more."""
ALLOWED_BYTES = 150 * 10**6
"""What either worker may need more for the long document than for the short one."""
SIZE = (298, 421)  # points; A5, to be quick


def add_scan(document: pikepdf.Pdf, picture: Path) -> None:
    """Append a page that is one picture, its JPEG as it stands."""
    with Image.open(picture) as image:
        (width, height), mode = image.size, image.mode
    page = document.add_blank_page(page_size=SIZE)
    drawn = document.make_stream(
        picture.read_bytes(),
        Type=Name.XObject,
        Subtype=Name.Image,
        Width=width,
        Height=height,
        ColorSpace={"L": Name.DeviceGray, "RGB": Name.DeviceRGB}[mode],
        BitsPerComponent=8,
        Filter=Name.DCTDecode,
    )
    page.Resources = Dictionary(XObject=Dictionary(Scan=drawn))
    page.Contents = document.make_stream(f"{SIZE[0]} 0 0 {SIZE[1]} 0 0 cm /Scan Do".encode())


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Writes PDFs of noisy full-page pictures, as a scanner with a feeder does; some lie on their side."""
    directory = tmp_path_factory.mktemp("scan")
    pictures = [directory / f"{degrees}.jpg" for degrees in (0, 90, 180, 270)]
    for number, picture in enumerate(pictures):
        sample = samples.sample_document(DocumentType.CHART, seed=number)
        samples.write_scan(sample, picture, degrees=int(picture.stem), seed=number)

    def written(pages: int) -> Path:
        with pikepdf.new() as document:
            for number in range(pages):
                add_scan(document, pictures[number % len(pictures)])
            document.save(directory / f"{pages}.pdf")
        return directory / f"{pages}.pdf"

    return written


@pytest.fixture(scope="module")
def instant_fleet(run_fleet: RunFleet) -> Iterator[Any]:
    """A fleet whose engine takes no time and no memory: what is left is everything around it."""
    with run_fleet("memory", engine="simulated:instant") as fleet:
        yield fleet


def most_while(job: Job[Any], workers: dict[str, int]) -> dict[str, int]:
    most, deadline = dict.fromkeys(workers, 0), time.monotonic() + WAIT_S
    while not job.refresh().done and time.monotonic() < deadline:
        most = {name: max(most[name], memory_of(pid)) for name, pid in workers.items()}
        time.sleep(0.2)
    assert job.state is JobState.SUCCEEDED
    return most


def test_a_long_document_needs_little_more_memory(instant_fleet: Any, scan: Callable[[int], Path]) -> None:
    workers = {name: instant_fleet.pid(name) for name in ("ingest", "engine")}
    short = most_while(instant_fleet.client.submit(ReadDocument(scan(SHORT))), workers)

    job = instant_fleet.client.submit(ReadDocument(scan(LONG)))
    long = most_while(job, workers)

    for name in workers:
        assert long[name] - short[name] < ALLOWED_BYTES, (name, short, long)
    rows = instant_fleet.query(
        "SELECT p.state, p.attempt, count(r.part_id) FROM parts p LEFT JOIN results r ON r.part_id = p.id"
        " WHERE p.job_id = %s AND p.stage = 'read' GROUP BY p.id",
        job.id,
    )
    assert rows == [("done", 1, 1)] * LONG
    assert {page.number for page in job.result(timeout=0).pages} == set(range(1, LONG + 1))
