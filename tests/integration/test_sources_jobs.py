"""Jobs whose document the fleet fetches: what is stored of them, who may change them, and what is left over."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from celery.exceptions import Retry
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, ClientSettings, DocumentFate, FailureCode, Job, ReadDocument, errors
from pecia_schemas.encryption import Keyring, new_key
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import JobState, Stage
from pecia_workers.ledger.ledger import Ledger, PartLostError
from pecia_workers.ledger.recovery import find_orphaned, requeue_orphaned
from pecia_workers.ledger.rekeying import rewrap
from pecia_workers.ledger.retention import retention_steps
from pecia_workers.outgoing.sources import Intake
from pecia_workers.protocol.parts import ClaimedPart, PartCancelledError, PartFailedError
from tests.shared.document_server import Answer, DocumentServer, handing_out
from tests.shared.house import House, claimed, hear_nothing
from tests.shared.limits import WAIT_S, until
from tests.shared.tables import texts_of_tables

pytestmark = pytest.mark.usefixtures("shared_template")

R = TypeVar("R")

TOKEN = "Quillfeather"
KEYS = {"key": new_key()}
NEWER = {"newer": new_key(), **KEYS}


@dataclass
class Ward(House):
    """Stores, and workers that fetch from this machine, of a fleet whose keys may change."""

    open: ExitStack = field(default_factory=ExitStack)
    keys: dict[str, str] | None = None
    engine: str = "simulated:instant"
    stage: Stage = Stage.READ

    @property
    def encryption(self) -> SecretStr:
        return SecretStr(json.dumps(self.keys) if self.keys else "")

    def settings(self, **changes: Any) -> WorkerSettings:
        inside = {"source_allow": ("127.0.0.0/8",), "source_ports": (), "encryption_keys": self.encryption}
        return super().settings(**inside, engine=self.engine, retry_delay=0.01, **changes)

    @property
    def store(self) -> PayloadStore:
        return PayloadStore.open(self.payload_url, keys=self.settings().keyring)

    def client(self) -> Client:
        settings = ClientSettings(encryption_keys=self.encryption)
        return self.open.enter_context(Client(**self.urls, settings=settings))

    def submit(self, url: str, **options: Any) -> Job[Any]:
        return self.client().submit(ReadDocument(url), **options)

    def run(self, job: Job[Any]) -> list[type[BaseException]]:
        """Have a worker run what is queued of a job, until nothing is; return what Celery is told of failures."""
        return self.work_off(job, stages={self.stage})

    async def claim(self, job: Job[Any], database: AsyncEngine, worker: str) -> tuple[Ledger, ClaimedPart]:
        """Claim the first part of a job as a worker of that name does, also after another one is gone."""
        ledger = Ledger(database, worker, announce=hear_nothing, keys=self.settings().keyring)
        await requeue_orphaned(database, await find_orphaned(database, limit=10), max_deaths=3)
        ((part, deaths),) = self.query("SELECT id, deaths FROM parts WHERE job_id = %s", job.id)
        return ledger, await claimed(ledger, part, deaths=deaths)

    def intake(self, ledger: Ledger) -> Intake:
        return Intake(self.store, ledger, self.spool, self.settings())

    def upkeep(self, **kept: Any) -> None:
        """Have upkeep do all that it does about what was kept long enough."""
        settings = self.settings(**kept)

        async def story(database: AsyncEngine) -> None:
            for name, step in retention_steps(settings).items():
                for _ in range(256 if name == "strays" else 1):
                    await step(database)

        self.ask(story)

    def row(self, job: Job[Any]) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM jobs WHERE id = %s", job.id)
        return row

    def told_of(self, word: str) -> set[str]:
        """Return the tables, or the columns of jobs, that a word is in."""
        texts = texts_of_tables(self.database_url)
        del texts["jobs"]
        columns = [
            (f"jobs.{column}", str(value))
            for row in self.rows("SELECT * FROM jobs")
            for column, value in row.items()
        ]
        return {place for place, text in [*texts.items(), *columns] if word in text}

    def left_over(self) -> list[str]:
        """Files that a worker left behind in its directory."""
        return [path.name for path in self.spool.rglob("*") if path.is_file() and path.name != "lock"]


@pytest.fixture
def ward(house: House, tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(house.database_url, house.redis_url, house.payload_url, tmp_path / "scratch")
    ward.spool.mkdir()
    with ward.open:
        yield ward


@pytest.fixture
def server() -> Iterator[DocumentServer]:
    with handing_out() as server:
        yield server


def test_a_url_is_left_to_the_fleet_which_asks_a_server_that_fails_again(
    ward: Ward, server: DocumentServer, printed: bytes
) -> None:
    failing = Answer(status=500), Answer(printed, then="reset", length=10**6)
    job = ward.submit(server.plan("/scan.png", *failing, Answer(printed)))
    assert server.asked == []
    assert (job.state, ward.row(job)["payload"], ward.files()) == (JobState.QUEUED, None, {})
    assert ward.run(job) == [Retry, Retry]
    assert job.state is JobState.SUCCEEDED
    assert len(job.result().pages) == 1
    assert list(ward.files().values()) == [printed]
    assert (server.asked, ward.left_over()) == (["/scan.png"] * 3, [])


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (f"https://user:{TOKEN}@files.example.org/scan.pdf", "a user name or password"),
        (f"HTTPS://{TOKEN}@files.example.org/", "a user name or password"),
        (f"https:///{TOKEN}", "cannot be fetched"),
        (f"https://files.example.org:99999/{TOKEN}", "cannot be fetched"),
        (f"https://files.example.org:0/{TOKEN}", "cannot be fetched"),
        (f"http://[::1/{TOKEN}", "cannot be fetched"),
        (f"https://files.example.org/{TOKEN}\n", "cannot be fetched"),
        (f"https://files.example.org/{TOKEN} 1", "cannot be fetched"),
        (f"https://files.example.org/{TOKEN}" + "x" * 8_000, "at most 8,000 characters"),
        (f"s3://{TOKEN}", "must name a bucket and an object"),
        (f"s3://{TOKEN}/", "must name a bucket and an object"),
        ("s3:///key", "cannot be fetched"),
    ],
)
def test_a_wrong_url_is_refused_and_not_quoted(client: Client, url: str, sentence: str) -> None:
    with pytest.raises(errors.InvalidSourceError, match=sentence) as caught:
        client.submit(ReadDocument(url))
    assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(ReadDocument(url))


def test_the_same_url_is_the_same_work(ward: Ward, server: DocumentServer, printed: bytes) -> None:
    url = server.plan("/scan.png", Answer(printed))
    job = ward.submit(url, idempotency_key="visit 7")
    assert not ward.submit(url, idempotency_key="visit 7").created
    ward.run(job)
    again = ward.submit(url, idempotency_key="visit 7")
    assert (again.id, again.created) == (job.id, False)
    with pytest.raises(errors.IdempotencyConflictError):
        ward.submit(f"{url}?page=2", idempotency_key="visit 7")


def test_what_no_worker_can_do_is_not_fetched(ward: Ward, server: DocumentServer) -> None:
    ward.engine, ward.stage = "rapidocr", Stage.INGEST
    url = server.plan("/document", Answer(b"document"))
    tasks: list[Any] = [CaptionVideo(url), ReadDocument(url, language="ko")]
    ward.rows(
        "INSERT INTO workers (name, role, stages, host, pid, capabilities, seen_at)"
        """ VALUES ('cpu', 'engine', '{read}', 'h', 1, '{"languages": ["en", "zh"]}', now() + interval '1 hour')"""
    )
    jobs = [ward.client().submit(task) for task in tasks]

    assert [ward.run(job) for job in jobs] == [[PartFailedError]] * 2

    codes = [job.failure and job.failure.code for job in jobs]
    assert codes == [FailureCode.NO_ENGINE, FailureCode.LANGUAGE_UNAVAILABLE]
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [(404, FailureCode.SOURCE_REFUSED, 1), (503, FailureCode.SOURCE_UNREACHABLE, 4)],
)
def test_what_cannot_be_fetched_says_why_and_not_from_where(
    ward: Ward, server: DocumentServer, status: int, code: FailureCode, tries: int
) -> None:
    server.plan(f"/{TOKEN}", Answer(status=status))
    job = ward.submit(server.url(f"/{TOKEN}?signature={TOKEN}"))
    ward.run(job)
    assert job.failure
    assert (job.state, job.failure.code, len(server.asked)) == (JobState.FAILED, code, tries)
    assert job.failure.message.startswith(f"The URL's server answered {status}.")
    assert ward.told_of(TOKEN) == {"jobs.task"}
    assert (ward.files(), ward.left_over()) == ({}, [])


def test_a_retry_fetches_what_was_not_fetched(ward: Ward, server: DocumentServer, printed: bytes) -> None:
    job = ward.submit(server.plan("/scan.png", Answer(status=403), Answer(printed[: len(printed) // 2])))
    ward.run(job)
    assert job.failure
    assert job.failure.code is FailureCode.SOURCE_REFUSED
    for _ in range(2):
        ward.run(job.retry())
        assert job.failure
        assert (job.failure.code, len(server.asked)) == (FailureCode.DAMAGED, 2)


@pytest.mark.parametrize(("slow", "left"), [(b"first", [b"first", b"second"]), (b"second", [b"second"])])
def test_a_fetch_that_lost_its_part_changes_and_leaves_nothing(
    ward: Ward, server: DocumentServer, slow: bytes, left: list[bytes]
) -> None:
    job = ward.submit(server.plan("/scan.pdf", Answer(slow, then="hang", length=None), Answer(b"second")))

    async def story(database: AsyncEngine) -> PayloadRef:
        ledger, part = await ward.claim(job, database, "slow")
        fetching = asyncio.create_task(ward.intake(ledger)(part))
        assert await asyncio.to_thread(server.reached.wait, WAIT_S)
        ledger, part = await ward.claim(job, database, "quick")
        taken = await ward.intake(ledger)(part)
        server.go_on.set()
        with pytest.raises(PartLostError):
            await fetching
        return taken

    taken, row = ward.ask(story), ward.row(job)

    assert row["payload"] == row["task"]["source"]["sha256"] == taken.sha256
    assert sorted(ward.files().values()) == left
    ward.upkeep()
    assert list(ward.files().values()) == [b"second"]


def test_only_who_runs_a_part_gives_its_job_a_document_twice(ward: Ward, server: DocumentServer) -> None:
    job = ward.submit(server.plan("/scan.pdf", Answer(b"document")))
    reference, holds = ward.store.put(b"document"), ward.store.holds_async

    async def story(database: AsyncEngine) -> None:
        ours, part = await ward.claim(job, database, "worker")
        other = Ledger(database, "other", announce=hear_nothing)
        for ledger, earlier in ((ours, replace(part, attempt=7)), (other, part)):
            with pytest.raises(PartLostError):
                await ledger.take_in(earlier, reference, holds)
        assert ward.row(job)["payload"] is None
        assert await ours.take_in(part, reference, holds) == reference
        assert await ours.take_in(part, reference, holds) == reference
        await asyncio.to_thread(job.cancel)
        with pytest.raises(PartLostError):
            await ours.take_in(part, reference, holds)

    ward.ask(story)


def test_of_two_documents_a_job_keeps_the_first_and_whoever_brings_another_goes_on_with_it(
    ward: Ward, server: DocumentServer
) -> None:
    job = ward.submit(server.plan("/scan.pdf", Answer()))
    first, other, holds = ward.store.put(b"first"), ward.store.put(b"other"), ward.store.holds_async

    async def story(database: AsyncEngine) -> None:
        ledger, part = await ward.claim(job, database, "slow")
        await ledger.take_in(part, first, holds)
        ledger, part = await ward.claim(job, database, "quick")
        assert await ledger.take_in(part, other, holds) == first

    ward.ask(story)
    ward.upkeep()

    assert ward.row(job)["payload"] == first.sha256
    assert list(ward.files().values()) == [b"first"]


def test_a_document_erased_during_intake_is_stored_again(ward: Ward, server: DocumentServer) -> None:
    url = server.plan("/scan.pdf", Answer(b"same"))
    former = ward.client().submit(ReadDocument(b"same"))
    former.cancel()
    job = ward.submit(url)
    purge = ward.client().purge
    erased: list[Any] = []

    class Late(Ledger):
        async def take_in(self, part: ClaimedPart, reference: PayloadRef, holds: Any) -> PayloadRef:
            if not erased:
                erased.extend(await asyncio.to_thread(purge, [former]))
            return await super().take_in(part, reference, holds)

    async def story(database: AsyncEngine) -> None:
        _, part = await ward.claim(job, database, "worker")
        await ward.intake(Late(database, "worker", announce=hear_nothing))(part)

    ward.ask(story)

    assert [one.document for one in erased] == [DocumentFate.ERASED]
    assert list(ward.files().values()) == [b"same"]


async def test_a_cancelled_or_purged_job_is_fetched_no_further(ward: Ward, server: DocumentServer) -> None:
    job = ward.submit(server.plan("/scan.pdf", Answer(b"x", length=None, then="hang")))

    async with ward.working() as runtime:
        running = asyncio.create_task(runtime.run(ward.part_of(job), deaths=0))
        assert await asyncio.to_thread(server.reached.wait, WAIT_S)
        (erasure,) = await asyncio.to_thread(ward.client().purge, [job])
        assert erasure.document is DocumentFate.ERASED
        with pytest.raises(PartCancelledError):
            await running

    assert server.cut.wait(WAIT_S)
    assert (job.refresh().state, ward.row(job)["payload"], ward.files()) == (JobState.CANCELLED, "", {})
    assert "url" not in ward.row(job)["task"]
    assert ward.left_over() == []


def test_a_purge_while_the_document_is_stored_leaves_nothing_of_it(
    ward: Ward, server: DocumentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ward.submit(server.plan("/scan.pdf", Answer(b"document")))
    deposit = PayloadStore.deposit_async
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slowly(store: PayloadStore, *args: Any) -> Any:
        deposited = await deposit(store, *args)
        began.set()
        await may_end.wait()
        return deposited

    monkeypatch.setattr(PayloadStore, "deposit_async", slowly)

    async def story(database: AsyncEngine) -> None:
        ledger, part = await ward.claim(job, database, "worker")
        fetching = asyncio.create_task(ward.intake(ledger)(part))
        await began.wait()
        await asyncio.to_thread(ward.client().purge, [job])
        for _ in range(2):  # by the purge, and by a worker that stops
            fetching.cancel()
            await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching

    ward.ask(story)
    ward.upkeep()

    assert ward.files() == {}


_WORKER = """
import asyncio, sys
from uuid import UUID
from pecia_schemas.states import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.worker.runtime import Runtime

async def main():
    runtime = Runtime(WorkerSettings.model_validate_json(sys.argv[1]), {Stage.INGEST})
    await runtime.start()
    await runtime.run(UUID(sys.argv[2]), deaths=0)

asyncio.run(main())
"""


def test_a_worker_that_is_killed_in_the_midst_of_it_costs_another_fetch(
    ward: Ward, server: DocumentServer, printed: bytes
) -> None:
    url = server.plan("/scan.png", Answer(printed, length=None, then="hang"), Answer(printed))
    job = ward.submit(url)
    part = ward.part_of(job)
    settings = json.dumps(
        {**ward.urls, "source_allow": ["127.0.0.0/8"], "source_ports": [], "decode_processes": 1}
    )
    with subprocess.Popen([sys.executable, "-c", _WORKER, settings, str(part)]) as worker:
        assert server.reached.wait(WAIT_S)
        worker.kill()

    async def story() -> None:
        async with ward.working() as runtime:  # which sees that the other process is gone
            await until(lambda: ward.waiting(job, within=timedelta(hours=1)))
            await runtime.run(part, deaths=1)

    asyncio.run(story())
    ward.run(job)

    assert (job.state, len(server.asked)) == (JobState.SUCCEEDED, 2)
    assert list(ward.files().values()) == [printed]


def test_with_keys_no_row_tells_the_url_or_file_and_keys_change_under_fetched_and_unfetched(
    ward: Ward, server: DocumentServer, printed: bytes
) -> None:
    ward.keys = KEYS
    urls = [f"{server.plan(f'/{TOKEN}/{name}', Answer(printed))}?signature={TOKEN}" for name in ("a", "b")]
    fetched, waiting = (ward.submit(url, idempotency_key=f"visit {n}") for n, url in enumerate(urls))
    ward.run(fetched)
    assert fetched.state is JobState.SUCCEEDED
    assert ward.told_of(TOKEN) == set()
    assert printed not in b"".join(ward.files().values())

    ward.keys = NEWER
    assert not ward.submit(urls[0], idempotency_key="visit 0").created
    keys: Keyring = ward.settings().keyring
    assert ward.ask(lambda database: rewrap(database, keys, lambda _: None)).jobs == 2
    ward.keys = {"newer": NEWER["newer"]}
    again = ward.submit(urls[0], idempotency_key="visit 0")
    assert (again.id, again.created) == (fetched.id, False)
    ward.run(waiting)
    assert waiting.state is JobState.SUCCEEDED


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize("by", ["upkeep", "purge"])
def test_the_url_of_a_document_is_erased_with_it(
    ward: Ward, server: DocumentServer, printed: bytes, by: str, fetched: bool
) -> None:
    server.plan(f"/{TOKEN}", Answer(printed) if fetched else Answer(status=404))
    job = ward.submit(server.url(f"/{TOKEN}"))
    ward.run(job)

    if by == "upkeep":
        ward.rows("UPDATE jobs SET finished_at = now() - interval '2 days'")
        ward.upkeep(keep_payloads=timedelta(days=1))
        assert ward.rows("SELECT counts FROM erasures") == [{"counts": {"documents": int(fetched)}}]
    else:
        assert [one.document for one in ward.client().purge([job])] == [DocumentFate.ERASED]

    assert (ward.told_of(TOKEN), ward.files()) == (set(), {})
    if not fetched:
        with pytest.raises(errors.RetryRefusedError):
            job.retry()
