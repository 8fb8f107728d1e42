"""A review's server: what it shows, what a correction becomes, who may ask, and that nothing of it outlives a purge."""

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from fastapi import FastAPI
from PIL import Image, ImageDraw
from pydantic import SecretStr
from typer.testing import Result

from pecia import Client, Job, JobErasedError, JobNotice, NoticeType, ReadDocument, Verdict, errors
from pecia.gateway.app import make_app
from pecia.gateway.identity import GatewayConfiguration
from pecia.review.app import Work, review_of
from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Doubt, DoubtReason, Line, Source, Table, Word
from pecia_schemas.encryption import Keyring, new_key
from pecia_schemas.settings import ClientSettings
from pecia_workers.ledger.rekeying import rewrap
from pecia_workers.ledger.retention import RESULTS, forget
from tests.shared.fixture_types import Make, Picture
from tests.shared.gateways import serving
from tests.shared.house import House
from tests.shared.limits import WAIT_S
from tests.shared.receivers import fan_out_all

Pecia = Callable[..., Result]
TOKEN = "token"
CELLS = ("Sodium", "146", "Potassium", "4.2")


def at(left: int, top: int) -> Box:
    return Box(left=left, top=top, right=left + 40, bottom=top + 12)


def line(*words: str, top: int) -> Line:
    placed = tuple(Word(text=word, box=at(50 * n, top), confidence=0.9) for n, word in enumerate(words))
    return Line(text=" ".join(words), box=Box(left=0, top=top, right=300, bottom=top + 12), words=placed)


def blocks() -> tuple[Block, ...]:
    lines = (line("Dose", "500", "mg", top=0), line("for", "7", "days", top=20))
    text = Block(kind=BlockKind.TEXT, text="Dose 500 mg\nfor 7 days", lines=lines, source=Source.MODEL)
    cells = tuple(Cell(row=n // 2, column=n % 2, text=one) for n, one in enumerate(CELLS))
    table = Table(rows=2, columns=2, cells=cells)
    rows = (line("Sodium", "146", top=40), line("Potassium", "4.2", top=60))
    grid = Block(kind=BlockKind.TABLE, text=table.text, lines=rows, table=table, source=Source.MODEL)
    return text, grid


DOUBTS = (
    Doubt(reason=DoubtReason.DISAGREES, text="500", other="50", box=at(50, 0), on_value=True),
    Doubt(reason=DoubtReason.DISAGREES, text="146", other="140", box=at(50, 40), on_value=True),
    Doubt(reason=DoubtReason.ONLY_WITNESS, other="Urea 30", box=at(0, 80), on_value=True),
    Doubt(reason=DoubtReason.NOT_ON_PAGE, text="7 days", on_value=True),
)
READ = {"blocks": blocks(), "doubts": DOUBTS, "verdict": Verdict.REVIEW, "width": 300, "height": 120}


@pytest.fixture
def read(client: Client, scribe: Any) -> Callable[..., Job[Any]]:
    """Submits a picture and has it read into the page with four doubts."""

    def run(**options: Any) -> Job[Any]:
        file = io.BytesIO()
        image = Image.new("1", (300, 120), 1)
        ImageDraw.Draw(image).rectangle((10, 10, 60, 30), fill=0)
        image.save(file, "PNG")
        job = client.submit(ReadDocument(file.getvalue(), document_type="lab_result"), **options)
        scribe.read(job.id, **READ)
        return job.refresh()

    return run


class Desk:
    """A person's browser, without the page."""

    def __init__(self, http: httpx2.AsyncClient, loop: asyncio.Runner) -> None:
        self.http, self.loop = http, loop

    def get(self, path: str, **how: Any) -> httpx2.Response:
        return self.loop.run(self.http.get(f"/review/{TOKEN}{path}", **how))

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/pages").json()
        return found

    def look(self, job: Job[Any]) -> dict[str, Any]:
        page: dict[str, Any] = self.get(f"/api/pages/{job.id}/1").json()
        return page

    def decide(self, job: Job[Any], revision: int = 0, **decision: Any) -> httpx2.Response:
        path = f"/review/{TOKEN}/api/pages/{job.id}/1"
        return self.loop.run(self.http.post(path, json={"revision": revision, **decision}))


async def started(app: FastAPI, stopping: asyncio.Event) -> asyncio.Task[None]:
    """Start an application, in a task of its own as a server has one."""
    ready = asyncio.Event()

    async def serve() -> None:
        async with app.router.lifespan_context(app):
            ready.set()
            await stopping.wait()

    task = asyncio.create_task(serve())
    await ready.wait()
    return task


@pytest.fixture
def open_desk(house: House) -> Callable[..., Any]:
    @contextmanager
    def run(work: Work | None = None, **settings: Any) -> Iterator[Desk]:
        given = GatewayConfiguration.model_validate({**house.urls, "client_name": "eva", **settings})
        with asyncio.Runner() as loop:
            served = make_app(given, review_of(work or Work(), TOKEN))
            transport = httpx2.ASGITransport(served)
            stopping = asyncio.Event()
            serving = loop.run(started(served, stopping))
            yield Desk(httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1"), loop)
            stopping.set()
            loop.run(asyncio.wait_for(serving, WAIT_S))

    return run


@pytest.fixture
def desk(open_desk: Any) -> Iterator[Desk]:
    with open_desk() as desk:
        yield desk


def test_corrections_leave_the_original(desk: Desk, read: Make, client: Client) -> None:
    job = read()
    shown = desk.look(job)
    assert [(one["target"], one["now"], one["suggested"]) for one in shown["doubts"]] == [
        ("b0t1-2", "500", "50"),
        ("b1c1", "146", "140"),
        ("d2", "", "Urea 30"),
        ("b0t4-6", "7 days", "7 days"),
    ]
    assert shown["blocks"][0]["tokens"][1]["box"] == [50, 0, 90, 12]
    for number, doubt in enumerate(shown["doubts"][:2]):
        assert desk.decide(job, number, target=doubt["target"], text=doubt["suggested"]).status_code == 200
    assert desk.decide(job, 2, target="d0", text="Urea 30").status_code == 200
    page = desk.decide(job, 3, target="b0t4-6", text="").json()

    document = job.result()
    (revised,) = document.pages
    assert (page["verdict"], page["doubts"], document.revision) == ("ok", [], 4)
    assert [block.text for block in revised.blocks] == [
        "Dose 50 mg\nfor",
        "Sodium\t140\nPotassium\t4.2",
        "Urea 30",
    ]
    assert [one.text for one in revised.lines] == [
        "Dose 50 mg",
        "for",
        "Sodium 140",
        "Potassium 4.2",
        "Urea 30",
    ]
    assert revised.lines[0].words[1].box == at(50, 0)
    assert revised.revision
    assert (revised.revision.by, revised.revision.correction and revised.revision.correction.before) == (
        "eva",
        "7 days",
    )
    assert job.result(revision=0).pages[0].blocks == blocks()
    assert job.result(revision=1).pages[0].tables[0].to_rows()[0] == ["Sodium", "146"]
    assert list(client.pages()) == []
    assert [entry.action for entry in client.audit(client="eva")] == ["revised"] * 4 + ["pages"]


def test_doubts_that_are_accepted_go_and_the_text_stays(desk: Desk, read: Make) -> None:
    job = read()
    desk.decide(job, accepted=[0, 1])
    stale = desk.decide(job, accepted=[0])
    assert (stale.status_code, stale.json()["code"]) == (409, "stale")
    page = desk.decide(job, 1, checked=True).json()
    revised = job.result().pages[0]
    assert (page["verdict"], page["checked"], page["doubts"]) == ("ok", True, [])
    assert revised.blocks == blocks()
    assert revised.revision
    assert (revised.revision.accepted, revised.revision.correction, revised.revision.number) == (2, None, 2)


@pytest.mark.parametrize(
    "decision",
    [{"target": "b7t0-1"}, {"target": "b0t9-9"}, {"target": "b0c0"}, {"target": "x"}, {"target": "f/x"}],
)
def test_what_is_not_on_the_page_is_not_corrected(desk: Desk, read: Make, decision: dict[str, Any]) -> None:
    job = read()
    assert desk.decide(job, text="1", **decision).status_code == 422
    assert job.result().revision == 0


def test_fields_keep_their_type_and_what_a_person_wrote_stands_before_all(
    desk: Desk, client: Client, scribe: Any, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id, fields={"total": 12.5, "items": [{"name": "Gloves"}], "paid": None})

    assert desk.decide(job, target="f/total", text="many").status_code == 422
    desk.decide(job, target="f/total", text="13")
    desk.decide(job, 1, target="f/items/0/name", text="Masks")
    desk.decide(job, 2, target="f/paid", text="cash")

    document = job.result()
    assert document.fields == {"total": 13, "items": [{"name": "Masks"}], "paid": "cash"}
    assert {leaf.path: leaf.standing for leaf in document.grounding}["/total"] == "confirmed"


def test_the_most_doubtful_page_comes_first(
    desk: Desk, read: Make, client: Client, scribe: Any, picture: Picture
) -> None:
    fewer = read()
    desk.decide(fewer, accepted=[0])
    worse, fine = client.submit(ReadDocument(picture())), client.submit(ReadDocument(picture(shade=9)))
    scribe.read(worse.id, verdict=Verdict.UNREADABLE)
    scribe.read(fine.id)
    more = read(metadata={"ward": "7"})

    found = desk.list()

    assert [one["job_id"] for one in found] == [str(job.id) for job in (worse, more, fewer)]
    assert [(one["doubts"], one["document_type"], one["metadata"]) for one in found[1:]] == [
        (4, "lab_result", {"ward": "7"}),
        (3, "lab_result", {}),
    ]


def test_a_sample_is_the_same_for_the_same_seed_and_has_pages_without_doubts(
    open_desk: Any, client: Client, scribe: Any, picture: Picture
) -> None:
    jobs = [client.submit(ReadDocument(picture(shade=shade))) for shade in range(12)]
    for job in jobs:
        scribe.read(job.id)

    def drawn(seed: int, job_ids: tuple[UUID, ...] = ()) -> list[str]:
        with open_desk(Work(job_ids=job_ids, sample=5, seed=seed)) as desk:
            return [one["job_id"] for one in desk.list()]

    assert drawn(1) == drawn(1)
    assert len({tuple(sorted(drawn(seed))) for seed in range(6)}) > 1
    assert drawn(1, job_ids=(jobs[0].id,)) == [str(jobs[0].id)]


def test_a_picture_is_shown_as_browsers_know_it(desk: Desk, read: Make) -> None:
    answer = desk.get(f"/pictures/{read().id}/1")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert (
            image.size,
            image.convert("L").getpixel((20, 20)),
            image.convert("L").getpixel((150, 60)),
        ) == ((300, 120), 0, 255)
    small = desk.get(f"/pictures/{read().id}/1?small")
    assert small.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(small.content)) as image:
        assert (image.size, image.getpixel((196, 3))) == ((200, 80), 255)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/review/other/", {}),
        ("/review/token2/api/pages", {}),
        (f"/review/{TOKEN}/", {"host": "evil.example"}),
    ],
)
def test_without_token_or_by_another_name_is_nothing(desk: Desk, path: str, headers: dict[str, str]) -> None:
    answer = desk.loop.run(desk.http.get(path, headers=headers))
    assert (answer.status_code, answer.text) == (404, "Not found.")


def test_the_page_lets_no_script_run_but_its_own_and_is_kept_by_nobody(desk: Desk) -> None:
    answer = desk.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "http" not in answer.text


def test_purge_and_retention_take_revisions_and_leave_who_revised(
    desk: Desk, house: House, read: Make, client: Client
) -> None:
    purged, kept_long = read(), read()
    for job in (purged, kept_long):
        desk.decide(job, target="b0t1-2", text="Quillfeather")
    client.purge([purged])
    assert house.query("SELECT job_id FROM revisions") == [(kept_long.id,)]
    assert [entry.action for entry in client.audit(job=purged)] == ["erased", "revised"]
    assert desk.decide(purged, 1, accepted=[0]).status_code == 410
    with pytest.raises(JobErasedError):
        purged.result(timeout=0)
    house.ask(lambda database: forget(database, [RESULTS], age=timedelta(), limit=9))
    assert house.query("SELECT job_id FROM revisions") == []


def test_a_correction_is_stored_encrypted_shown_plain_and_comes_under_another_key(
    open_desk: Any, house: House, read: Make
) -> None:
    job, keys = read(), {"new": new_key(), "old": new_key()}
    with open_desk(encryption_keys=json.dumps({"old": keys["old"]})) as desk:
        desk.decide(job, target="b0t1-2", text="Quillfeather")
    ((stored,),) = house.query("SELECT content::text FROM revisions")
    assert ("Quillfeather" in stored, "old" in stored) == (False, True)
    ring = Keyring.of(SecretStr(json.dumps(keys)))
    assert house.ask(lambda database: rewrap(database, ring, lambda _: None)).jobs == 1
    with open_desk(encryption_keys=json.dumps({"new": keys["new"]})) as desk:
        assert desk.look(job)["blocks"][0]["tokens"][1]["text"] == "Quillfeather"


def test_who_asks_is_told_of_a_revision_without_what_it_says(
    desk: Desk, house: House, read: Make, client: Client
) -> None:
    endpoint = client.add_endpoint("https://example.org/all", events=["result.revised"])
    job = read(webhook="https://example.org/endings")
    desk.decide(job, accepted=[0])
    desk.decide(job, 1, target="b0t4-6", text="Quillfeather")

    fan_out_all(house.database_url)
    told = [
        JobNotice.model_validate(body)
        for (body,) in house.query(
            "SELECT body FROM deliveries WHERE endpoint_id = %s ORDER BY created_at", endpoint.id
        )
    ]

    assert [(one.type, one.data.revision, one.data.part and one.data.part.number) for one in told] == [
        (NoticeType.REVISED, 1, 1),
        (NoticeType.REVISED, 2, 1),
    ]
    assert told[0].data.sequence < told[1].data.sequence
    assert "Quillfeather" not in told[1].model_dump_json()
    assert [one.type for one in client.deliveries(job=job)].count(NoticeType.SUCCEEDED) == 1
    assert [(event.actor, event.reason) for event in job.events()][-1] == ("client:eva", "revised")


def test_a_gateway_revises_the_result_too(desk: Desk, house: House, read: Make) -> None:
    job = read()
    house.query("UPDATE jobs SET tenant = 'clinic'")
    desk.decide(job, target="b0t1-2", text="50")
    with serving(ClientSettings.model_validate(house.urls)) as gateway:
        _, key = gateway.key()
        with Client(gateway.url, api_key=key) as remote:
            there = remote.job(job.id)

            assert there.result().pages[0].text.startswith("Dose 50 mg")
            assert there.result(revision=0).pages[0].text.startswith("Dose 500 mg")
            for one in (job, there):
                with pytest.raises(errors.InvalidOptionError, match="revision is 0"):
                    one.result(revision=-1)


def test_a_facsimile_is_one_file_with_both(desk: Desk, read: Make, tmp_path: Path) -> None:
    job = read()
    desk.decide(job, target="b0t1-2", text="<b>50")
    written = job.save(tmp_path / "page.html", "facsimile").read_text()
    assert 'href="data:image/png;base64,' in written
    assert '<a id="t1b0t1-2" href="#r1b0t1-2">&lt;b&gt;50</a>' in written
    assert '<rect id="r1b0t1-2" x="50" y="0" width="40" height="12"/>' in written
    assert "<script" not in written
    assert {link[0] for link in re.findall(r'(?:href|src)="([^"]+)"', written)} == {"#", "d"}


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])  # noqa: S104  refused
def test_a_review_listens_on_this_machine_alone(pecia: Pecia, host: str) -> None:
    refused = pecia("review", "--host", host)
    assert refused.exit_code == 2
    assert "127.0.0.1 or ::1" in refused.output


def test_certify_wants_the_pages_that_it_draws_checked_whole(pecia: Pecia, desk: Desk, read: Make) -> None:
    job = read()

    refused = pecia("certify", "--all", "--sample", "9", "--seed", "7")
    assert refused.exit_code == 1
    assert "1 drawn page not checked completely yet: `pecia review --sample 9 --seed 7`" in refused.output
    none = pecia("certify")
    assert (none.stdout, none.stderr.count("no page is checked completely yet")) == ("", 1)
    desk.decide(job, target="b1c3", text="4.3")
    desk.decide(job, 1, checked=True)

    (told,) = map(json.loads, pecia("certify", "--json").stdout.splitlines())
    assert (told["document_type"], told["rate"]["values"], told["rate"]["wrong"]) == ("lab_result", 1, 1)
    assert "lab_result" in pecia("certify").stdout


def test_eval_scores_no_jobs_but_those_of_the_run_that_is_named(pecia: Pecia, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "page.txt").write_text("Dose 50 mg")
    (tmp_path / "run.report").write_text("{}")
    refused = pecia("eval", str(tmp_path), "--of", str(tmp_path / "run.report"))
    assert refused.exit_code == 2
    assert "that run did not read 'page.png'" in " ".join(refused.output.replace("│", "").split())
