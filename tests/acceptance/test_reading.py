"""Documents go in and their text comes out, with one callback for each job, also from many processes at once.

What cannot be read is in test_every_input.py.
"""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from PIL import Image

from pecia import Document, JobState, NoticeType, Page, ReadDocument, Verdict
from pecia.webhooks import verify
from pecia_workers.media import samples
from tests.shared.command import ran
from tests.shared.fixture_types import Draw, Eventually, Make
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded

Drawing = Callable[[str], Image.Image]


@pytest.fixture
def picture(drawn: Draw) -> Drawing:
    return lambda text: Image.open(io.BytesIO(drawn(text))).convert("RGB")


@pytest.fixture
def pages(picture: Drawing) -> Callable[..., bytes]:
    """A document of pages with one line of print each, as `kind`."""

    def written(kind: str, texts: list[str]) -> bytes:
        first, *others = map(picture, texts)
        return encoded(first, kind, save_all=True, append_images=others, resolution=samples.DPI)

    return written


def read(fleet: Any, source: bytes | Path, **options: Any) -> Document:
    document: Document = fleet.client.submit(ReadDocument(source, **options)).result(WAIT_S)
    return document


def only_page(document: Document) -> Page:
    assert [page.number for page in document.pages] == [1]
    assert document.failed == ()
    return document.pages[0]


def expect_lines_on_the_page(page: Page) -> None:
    assert " ".join(line.text for line in page.lines).split() == page.text.split()
    for line in page.lines:
        assert 0 <= line.box.left < line.box.right <= page.width
        assert 0 <= line.box.top < line.box.bottom <= page.height
        assert line.confidence
        assert line.confidence > 0.5


def test_a_picture_is_read(fleet: Any, picture: Drawing) -> None:
    image = picture("Sent as a picture")
    page = only_page(read(fleet, encoded(image, "PNG")))
    assert page.text == "Sent as a picture"
    assert (page.verdict, page.rotation, page.engine) == (Verdict.OK, 0, "rapidocr")
    assert (page.width, page.height) == image.size
    assert page.confidence is not None and page.confidence > 0.9  # noqa: PT018  narrows the type
    expect_lines_on_the_page(page)


@pytest.mark.parametrize("kind", ["TIFF", "PDF"])
def test_all_pages_are_read_and_keep_their_order(fleet: Any, pages: Callable[..., bytes], kind: str) -> None:
    texts = [f"Sheet {number} of the file" for number in range(1, 8)]
    document = read(fleet, pages(kind, texts))
    assert [page.number for page in document.pages] == list(range(1, 8))
    assert document.text == "\f".join(texts)
    for page in document.pages:
        expect_lines_on_the_page(page)


def deliveries(fleet: Any, jobs: list[UUID]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = fleet.query(
        "SELECT id::text, state, attempts, last_error FROM deliveries WHERE job_id = ANY(%s)", jobs
    )
    return rows


def test_every_job_calls_back_once_however_it_ended(
    fleet: Any, drawn: Draw, open_receiver: Make, eventually: Eventually
) -> None:
    receiver = open_receiver()
    good = [ReadDocument(drawn(f"Call number {number}")) for number in range(5)]
    jobs = fleet.client.submit_many([*good, ReadDocument(b"no document")], webhook=receiver.url)
    ids = [job.id for job in jobs.wait(WAIT_S)]

    eventually(lambda: {state for _, state, *_ in deliveries(fleet, ids)} == {"delivered"})

    notices = [verify(request.body, request.headers, fleet.webhook_secret) for request in receiver.requests]
    assert sorted(notice.data.job_id for notice in notices) == sorted(ids)
    states = {notice.data.job_id: (notice.type, notice.data.state) for notice in notices}
    assert [states[job] for job in ids] == [
        *[(NoticeType.SUCCEEDED, JobState.SUCCEEDED)] * 5,
        (NoticeType.FAILED, JobState.FAILED),
    ]
    assert [(state, attempts) for _, state, attempts, _ in deliveries(fleet, ids)] == [("delivered", 1)] * 6


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_submitters.py"


@pytest.mark.gate
def test_nobody_who_waits_is_forgotten_and_no_connection_is_kept(fleet: Any) -> None:
    size = ("--processes", "4", "--tasks", "30")
    done = ran(sys.executable, SCRIPT, "--this-fleet", "--json", *size, env=fleet.environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["jobs"], told["lost"]) == (120, 0)
    assert 0 < told["postgres_most"] <= 4 * 15
    assert told["redis_most"] > 0
    assert (told["postgres_after"], told["redis_after"]) == (0, 0)
