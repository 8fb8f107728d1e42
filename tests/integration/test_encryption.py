"""With keys nothing that is stored tells of a document; keys can be changed while the fleet works."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from pydantic import BaseModel, Field, SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, ClientSettings, FailureCode, Job, ReadDocument, errors
from pecia_schemas.encryption import Keyring, KeyUnavailableError, new_key
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_workers.commands.keys import Rekeyed, Rekeying
from pecia_workers.ledger.rekeying import PAYLOADS, RESULTS, Holdings, holdings, payloads_due, spans
from pecia_workers.protocol.parts import ClaimedPart
from pecia_workers.worker.stages import failure_of
from tests.shared.house import House, claimed
from tests.shared.tables import texts_of_tables

pytestmark = pytest.mark.gate

R = TypeVar("R")

PLANTED = "Quillfeather"
OLD = {"old": new_key()}
NEW = {"new": new_key()}
DOCUMENT = b"%PDF-1.7\n" + PLANTED.encode() * 10
VIDEO = b"\x00\x00\x00\x18ftypmp42" + PLANTED.encode() * 10


class Asked(BaseModel):
    """A form whose very schema tells of the patient."""

    answer: str | None = Field(None, description=f"what {PLANTED} takes")


@dataclass
class Ward(House):
    """Stores as clients and workers with different keys see them."""

    a_scribe: Any = None
    open: ExitStack = field(default_factory=ExitStack)

    def client(self, keys: dict[str, str]) -> Client:
        settings = ClientSettings(encryption_keys=SecretStr(json.dumps(keys) if keys else ""))
        return self.open.enter_context(Client(**self.urls, settings=settings))

    def scribe(self, keys: dict[str, str]) -> Any:
        return replace(self.a_scribe, keys=ring(keys))

    def read(
        self, text: str = PLANTED, *, keys: dict[str, str], label: str | None = None, **task: Any
    ) -> Job[Any]:
        """Have a document of one page read, under these keys."""
        job = self.client(keys).submit(ReadDocument(DOCUMENT, **task), label=label)
        scribe = self.scribe(keys)
        scribe.cut(job.id, 1)
        scribe.read(job.id, 0, text)
        return job.refresh()

    def rotate(self, keys: dict[str, str], told: Callable[[int], None] = lambda _: None) -> Rekeyed:
        def rotating(database: AsyncEngine) -> Awaitable[Rekeyed]:
            store = PayloadStore.open(self.payload_url, keys=ring(keys))
            return Rekeying(database=database, store=store, keys=ring(keys)).run(told)

        return self.ask(rotating)

    def holdings(self) -> dict[str | None, tuple[int, int, int]]:
        """Documents, schemas and results by key."""
        held: list[Holdings] = self.ask(holdings)
        return {one.key: (one.payloads, one.tasks, one.results) for one in held}

    def claim(self, job: Job[Any], keys: dict[str, str]) -> ClaimedPart:
        """Claim the first part of a job as a worker with these keys does."""
        (part,) = self.waiting(job)
        return self.play(lambda ledger: claimed(ledger, part), keys=ring(keys))

    def tables(self) -> str:
        """Every row of every table."""
        return str(texts_of_tables(self.database_url))


def ring(keys: dict[str, str]) -> Keyring:
    return Keyring.of(SecretStr(json.dumps(keys) if keys else ""))


@pytest.fixture
def ward(house: House, scribe: Any) -> Iterator[Ward]:
    stores = house.database_url, house.redis_url, house.payload_url, house.spool
    ward = Ward(*stores, a_scribe=scribe)
    with ward.open:
        yield ward


def test_a_part_without_its_key_is_tried_again_and_says_which_it_needs() -> None:
    failure = failure_of(KeyUnavailableError("old"), attempt=2)
    assert (failure.code, failure.retryable, failure.attempt) == (FailureCode.KEY_UNAVAILABLE, True, 2)
    assert failure.message.startswith("Needs the key 'old'.")


@pytest.mark.parametrize("keys", [NEW, {}], ids=["with keys", "without"])
def test_with_keys_no_table_and_no_store_tell_of_a_document(ward: Ward, keys: dict[str, str]) -> None:
    job = ward.read(keys=keys, fields=Asked, instructions=PLANTED, password=PLANTED)
    assert [page.text for page in job.pages(timeout=0)] == [PLANTED]
    told = ward.tables(), *map(str, ward.files().values())
    assert any(PLANTED in place for place in told) is not bool(keys)
    assert ward.client(NEW).job(job.id).result(timeout=0).text == PLANTED


def test_captions_reach_their_summary_and_the_client(ward: Ward) -> None:
    job = ward.client(NEW).submit(CaptionVideo(VIDEO))
    scribe = ward.scribe(NEW)
    scribe.cut_video(job.id, 2)
    for ordinal in range(2):
        scribe.caption(job.id, ordinal, f"{PLANTED} {ordinal}")

    captions = ward.play(lambda ledger: ledger.captions(job.id), keys=ring(NEW))
    assert [segment.text for segment in captions] == [f"{PLANTED} 0", f"{PLANTED} 1"]
    scribe.summarize(job.id, 2, f"all of {PLANTED}")
    summary = job.result(timeout=0).summary
    assert summary is not None
    assert summary.text == f"all of {PLANTED}"
    assert PLANTED not in ward.tables()


@pytest.mark.parametrize("keys", [{}, OLD, {"new": new_key()}], ids=["none", "another", "of the same name"])
def test_a_client_without_the_key_is_told_which_setting(ward: Ward, keys: dict[str, str]) -> None:
    job = ward.read(keys=NEW)
    with pytest.raises(errors.ConfigurationError, match=r"'new'.*PECIA_ENCRYPTION_KEYS") as caught:
        ward.client(keys).job(job.id).result(timeout=0)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_spans_cover_every_row_once(ward: Ward, size: int) -> None:
    for text in ("one", "two", "three"):
        ward.read(text, keys={})
    parts = sorted(str(row["part_id"]) for row in ward.rows("SELECT part_id FROM results"))

    async def all_spans(database: AsyncEngine) -> list[tuple[str, str]]:
        return [(span["after"], span["last"]) async for span in spans(database, RESULTS, size=size)]

    found = ward.ask(all_spans)
    assert [last for _, last in found] == [parts[end - 1] for end in range(size, 3, size)] + [parts[-1]]
    assert [after for after, _ in found[1:]] == [last for _, last in found[:-1]]


@pytest.mark.parametrize("former", [{}, OLD], ids=["none", "another"])
def test_a_repeated_key_finds_its_job_under_any_encryption_key(ward: Ward, former: dict[str, str]) -> None:
    task = ReadDocument(DOCUMENT, fields=Asked)
    first = ward.client(former).submit(task, idempotency_key="k")
    with pytest.raises(errors.IdempotencyConflictError):
        ward.client(NEW | former).submit(ReadDocument(VIDEO), idempotency_key="k")
    again = ward.client(NEW | former).submit(task, idempotency_key="k")
    first.cancel()
    ward.rotate(NEW | former)
    rotated = ward.client(NEW).submit(task, idempotency_key="k")
    assert [(one.id, one.created) for one in (again, rotated)] == [(first.id, False)] * 2


@pytest.mark.parametrize("former", [{}, OLD], ids=["none", "another"])
def test_after_a_rotation_the_former_key_is_not_needed(ward: Ward, former: dict[str, str]) -> None:
    job = ward.read(keys=former, fields=Asked, label=PLANTED)
    name = next(iter(ward.files()))
    assert ward.holdings() == {next(iter(former), None): (1, 1, 1)}

    assert ward.rotate(NEW | former) == Rekeyed(payloads=1, tasks=0, results=1)

    assert ward.holdings() == {"new": (1, 1, 1)}
    rotated = ward.client(NEW).job(job.id)
    assert (rotated.label, rotated.result(timeout=0).text) == (PLANTED, PLANTED)
    assert PLANTED not in ward.tables()
    assert ward.rows("SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL") == [
        {"payload": name}
    ]


def test_a_job_that_is_run_again_after_a_rotation_finds_its_document(ward: Ward, tmp_path: Path) -> None:
    job = ward.client(OLD).submit(ReadDocument(DOCUMENT, fields=Asked))
    job.cancel()
    ward.rotate(NEW | OLD)
    (former,) = ward.rows("SELECT payload FROM discarded_payloads")
    store = PayloadStore.open(ward.payload_url, keys=ring(NEW))
    store.delete(PayloadRef(sha256=former["payload"], size=0, media_type=None))

    ward.client(NEW).job(job.id).retry()
    part = ward.claim(job, NEW)

    asyncio.run(store.download(part.payload, tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == DOCUMENT
    assert isinstance(part.task, ReadDocument)
    assert part.task.fields == Asked.model_json_schema()


def test_a_document_stays_as_it_is_while_a_job_needs_it(ward: Ward) -> None:
    done = ward.read(keys=OLD)
    waiting = ward.client(OLD).submit(ReadDocument(DOCUMENT))

    assert ward.rotate(NEW | OLD) == Rekeyed(in_use=1, results=1)
    assert ward.holdings() == {"old": (1, 0, 0), "new": (0, 0, 1)}
    assert len(ward.files()) == 1

    waiting.cancel()
    assert ward.rotate(NEW | OLD) == Rekeyed(payloads=1)
    assert ward.holdings() == {"new": (1, 0, 1)}
    assert ward.client(NEW).job(done.id).result(timeout=0).text == PLANTED


def test_a_job_that_runs_again_at_that_very_moment_keeps_its_document(ward: Ward) -> None:
    job = ward.client(OLD).submit(ReadDocument(DOCUMENT))
    job.cancel()

    async def retried_meanwhile(database: AsyncEngine) -> Rekeyed:
        store = PayloadStore.open(ward.payload_url, keys=ring(NEW | OLD))
        rekeying = Rekeying(database=database, store=store, keys=ring(NEW | OLD))
        (span,) = [span async for span in spans(database, PAYLOADS)]
        ((document, _),) = await payloads_due(database, span, rekeying.keys)
        await asyncio.to_thread(job.retry)
        await rekeying._document(document)
        return rekeying.done

    assert ward.ask(retried_meanwhile) == Rekeyed(in_use=1)
    kept = ward.claim(job, OLD).payload
    assert kept.key == "old"
    discarded = ward.rows("SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL")
    assert [row["payload"] for row in discarded] == [name for name in ward.files() if name != kept.sha256]


@pytest.mark.parametrize("former", [{}, OLD], ids=["not encrypted", "under the former key"])
@pytest.mark.parametrize(
    "given",
    [{"fields": Asked, "password": PLANTED}, {"instructions": PLANTED}],
    ids=" ".join,
)
def test_what_a_job_that_goes_on_was_given_is_encrypted_anew(
    ward: Ward, former: dict[str, str], given: dict[str, Any]
) -> None:
    asked = ReadDocument(DOCUMENT, **given)
    job = ward.client(former).submit(asked)
    assert ward.rotate(NEW | OLD) == Rekeyed(in_use=1, tasks=1)
    assert ward.rotate(NEW | OLD) == Rekeyed(in_use=1)
    assert PLANTED not in ward.tables()
    part = ward.claim(job, NEW)
    assert isinstance(part.task, ReadDocument)
    assert [getattr(part.task, name) for name in given] == [getattr(asked, name) for name in given]
    assert PLANTED not in repr(part)


def test_the_cache_forgets_what_it_found_by_the_former_key(ward: Ward) -> None:
    ward.read(keys=OLD)
    cached = "INSERT INTO result_cache (key, part_id) SELECT 'hash', part_id FROM results RETURNING part_id"
    assert len(ward.rows(cached)) == 1
    ward.rotate(NEW | OLD)
    assert ward.rows("SELECT part_id FROM result_cache") == []


def test_a_rotation_that_was_broken_off_goes_on_where_it_was(ward: Ward) -> None:
    for text in ("one", "two", "three"):
        ward.read(text, keys=OLD)
    seen: list[int] = []

    def break_off(number: int) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ward.rotate(NEW | OLD, break_off)

    assert ward.holdings() == {"new": (1, 0, 0), "old": (0, 0, 3)}
    assert ward.rotate(NEW | OLD) == Rekeyed(results=3)


def test_two_rotations_at_once_do_everything_once_between_them(ward: Ward) -> None:
    jobs = [ward.read(text, keys=OLD, fields=Asked) for text in ("one", "two", "three")]
    keys = ring(NEW | OLD)

    async def twice(database: AsyncEngine) -> list[Rekeyed]:
        store = PayloadStore.open(ward.payload_url, keys=keys)
        rotations = [Rekeying(database=database, store=store, keys=keys) for _ in range(2)]
        return await asyncio.gather(*(rotation.run(lambda _: None) for rotation in rotations))

    one, other = ward.ask(twice)

    assert (one.payloads + other.payloads, one.refused + other.refused) == (1, 0)
    ward.rotate(NEW | OLD)  # what one of them held the other may have left
    assert ward.holdings() == {"new": (1, 3, 3)}
    assert [ward.client(NEW).job(job.id).result(timeout=0).text for job in jobs] == ["one", "two", "three"]


def test_what_cannot_be_decrypted_is_left_and_stops_nothing(ward: Ward) -> None:
    lost = ward.read("lost", keys={"lost": new_key()})
    kept = ward.read("kept", keys=OLD)
    assert ward.rotate(NEW | OLD) == Rekeyed(payloads=1, results=1, refused=2)
    assert ward.holdings() == {"lost": (1, 0, 1), "new": (1, 0, 1)}
    assert ward.client(NEW).job(kept.id).result(timeout=0).text == "kept"
    assert lost.refresh().state == "succeeded"


def test_a_result_that_somebody_holds_is_left_to_a_later_pass(ward: Ward) -> None:
    held, free = ward.read("held", keys=OLD), ward.read("free", keys=OLD)
    with psycopg.connect(ward.database_url) as holding:
        holding.execute("SELECT FROM results WHERE job_id = %s FOR UPDATE", (held.id,))
        assert ward.rotate(NEW | OLD).results == 1
    assert ward.rotate(NEW | OLD).results == 1
    assert [ward.client(NEW).job(job.id).result(timeout=0).text for job in (held, free)] == ["held", "free"]
