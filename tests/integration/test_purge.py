"""A purge takes everything of a document at once and for good, and leaves nobody else's."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pecia import Client, DocumentFate, Job, JobErasedError, PayloadStoreUnavailableError, ReadDocument
from pecia_schemas import discards
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import JobState, new_id
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.tables import texts_of_tables

pytestmark = pytest.mark.gate

PRINTED = "Quillfeather"
METADATA = "Marigoldby"
KEY = "Saffronwick"
HOOK = "juniperstow"
REASON = "Mulberrycombe"
FIELD = "Thistlewood"
PASSWORD = "Hartwigsen"
LABEL = "Elderbourne"
INSTRUCTIONS = "Larkspurfield"
PLANTED = (PRINTED, METADATA, KEY, HOOK, REASON, FIELD, INSTRUCTIONS, PASSWORD, LABEL)


Submit = Callable[..., Job[Any]]
Words = Callable[[], set[str]]


@pytest.fixture
def held_words(house: House) -> Words:
    """Tells which planted words are in any table or stored document."""

    def look() -> set[str]:
        everything = f"{texts_of_tables(house.database_url)} {house.files()}"
        return {word for word in PLANTED if word in everything}

    return look


@pytest.fixture
def submit(client: Client) -> Submit:
    """Submits a document full of planted words."""

    def run(content: bytes = PRINTED.encode(), **options: Any) -> Job[Any]:
        fields = {"type": "object", "properties": {"who": {"enum": [FIELD]}}}
        asked = {
            "metadata": {"patient": METADATA},
            "label": f"{LABEL}.pdf",
            "webhook": f"https://hook.example/{HOOK}",
            "idempotency_key": f"{KEY} {new_id()}",
        }
        task = ReadDocument(content, fields=fields, instructions=INSTRUCTIONS, password=PASSWORD)
        return client.submit(task, **(asked | options))

    return run


@pytest.fixture
def read(submit: Submit, scribe: Any) -> Submit:
    """Submits a document and has it read: of its two pages one failed."""

    def run(**options: Any) -> Job[Any]:
        job = submit(**options)
        scribe.cut(job.id, 2)
        scribe.read(job.id, 0, text=PRINTED, fields={"who": FIELD})
        scribe.fail(job.id, 1)
        return job.refresh()

    return run


def test_nothing_of_the_document_is_left_in_any_table_or_in_the_payload_store(
    client: Client, read: Submit, submit: Submit, held_words: Words
) -> None:
    job, open_job = read(), submit()
    open_job.cancel(reason=REASON)
    assert held_words() == set(PLANTED)
    erased = client.purge([job, open_job])
    assert held_words() == set()
    assert {one.job_id for one in erased} == {job.id, open_job.id}
    assert {one.document for one in erased} == {DocumentFate.ERASED}


def test_a_result_that_is_erased_while_it_is_read_is_not_taken_for_an_empty_one(
    client: Client, read: Submit, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = read()
    client.purge([client.job(job.id)])
    monkeypatch.setattr(Job, "wait", lambda job, _timeout: job)  # it looked before the purge
    with pytest.raises(JobErasedError):
        job.result()
    assert house.query("SELECT count(*) FROM reads") == [(0,)]


def test_no_key_of_another_job_keeps_a_job_from_being_purged(client: Client, submit: Submit) -> None:
    job = submit()
    submit(idempotency_key=f"erased/{job.id}")
    assert [one.job_id for one in client.purge([job])] == [job.id]


def test_a_running_job_is_cancelled_and_what_its_worker_brings_is_refused(
    client: Client, submit: Submit, scribe: Any, held_words: Words, house: House
) -> None:
    client.add_endpoint("https://example.org/hook", events=["part.done"])
    job = submit()
    scribe.cut(job.id, 2)
    scribe.read(job.id, text="read before")
    assert house.query("SELECT count(*) FROM notices") == [(1,)]
    house.query("UPDATE parts SET state = 'running', worker = 'scribe', attempt = 1 WHERE state = 'queued'")

    client.purge([job])

    assert job.refresh().state is JobState.CANCELLED
    with pytest.raises(AssertionError, match="cannot be claimed"):
        scribe.read(job.id, text=PRINTED)
    assert held_words() == set()
    assert house.query("SELECT count(*) FROM deliveries") == [(0,)]
    assert house.query("SELECT count(*) FROM notices") == [(0,)]


def test_a_document_that_is_erased_between_its_upload_and_its_job_is_asked_for_again(
    client: Client, submit: Submit, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = submit()
    connections = client._open()
    write = connections._write

    def purge_first(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        client.purge([former])
        return write(*args, **options)

    monkeypatch.setattr(connections, "_write", purge_first)
    with pytest.raises(PayloadStoreUnavailableError) as raised:
        submit()

    assert raised.value.retryable
    assert house.files() == {}
    submit()
    assert len(house.files()) == 1


def test_a_removal_waits_for_a_submit_that_has_seen_the_document(
    client: Client, submit: Submit, house: House
) -> None:
    former, other = submit(), submit()
    with submitting(house.database_url, other.id) as finish, ThreadPoolExecutor(1) as thread:
        purge = thread.submit(client.purge, [former])
        eventually(lambda: is_waiting(house))
        finish()
        (erased,) = purge.result(timeout=WAIT_S)
    assert erased.document is DocumentFate.SHARED
    assert len(house.files()) == 1


@contextmanager
def submitting(database_url: str, job_id: UUID) -> Iterator[Callable[[], None]]:
    """A submit that has seen the document of that job, and gets to writing its own job when it is told to."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT payload FROM jobs WHERE id = %s", (job_id,)).fetchone()
        assert row is not None
        connection.execute("UPDATE jobs SET payload_released_at = now() WHERE id = %s", (job_id,))
        connection.commit()
        connection.execute(discards.HOLD.text.replace(":payloads", "%s").encode(), (list(row),))

        def finish() -> None:
            connection.execute("UPDATE jobs SET payload_released_at = NULL WHERE id = %s", (job_id,))
            connection.commit()

        yield finish


def is_waiting(house: House) -> bool:
    return bool(house.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


def test_a_submit_waits_for_a_removal(submit: Submit, house: House) -> None:
    submit()
    (document,) = house.files()
    with psycopg.connect(house.database_url) as removing, ThreadPoolExecutor(1) as thread:
        removing.execute(discards.LOCK.text.replace(":payloads", "%s").encode(), ([document],))
        again = thread.submit(submit)
        eventually(lambda: is_waiting(house))
        next(Path(house.payload_url).rglob(document)).unlink()
        removing.execute(
            "INSERT INTO discarded_payloads (payload, erased_at) VALUES (%s, now())", (document,)
        )
        removing.commit()

        with pytest.raises(PayloadStoreUnavailableError):
            again.result(timeout=WAIT_S)


def test_whoever_submits_and_purges_the_same_document_at_once_every_job_that_stays_has_it(
    client: Client, submit: Submit, house: House
) -> None:
    until = time.monotonic() + 1.5

    def come_and_go() -> None:
        while time.monotonic() < until:
            with suppress(PayloadStoreUnavailableError):
                client.purge([submit()])

    def come_to_stay() -> Job[Any]:
        while True:
            with suppress(PayloadStoreUnavailableError):
                return submit()

    with ThreadPoolExecutor(3) as threads:
        passing = [threads.submit(come_and_go) for _ in range(2)]
        staying = threads.submit(come_to_stay)
        for thread in passing:
            thread.result()
    assert len(house.files()) == 1

    client.purge([staying.result()])
    assert house.files() == {}


def test_a_repeated_submit_leaves_no_document_behind(submit: Submit, scribe: Any, house: House) -> None:
    scribe.fail(submit(idempotency_key=KEY).id, code=FailureCode.DAMAGED, stage="ingest")
    house.query("UPDATE jobs SET payload_released_at = now()")
    assert not submit(idempotency_key=KEY).created
    assert house.query("SELECT discarded_at IS NOT NULL FROM discarded_payloads") == [(True,)]


def test_a_document_removed_by_upkeep_is_erased(client: Client, read: Submit, house: House) -> None:
    job = read()
    ((payload,),) = house.query("SELECT payload FROM jobs")
    client.purge([job])
    removed: list[str] = []
    fate = client._open().purging.discard(payload, removed.append)
    assert (fate, removed) == (DocumentFate.ERASED, [])


def test_a_payload_store_that_is_away_keeps_nothing_from_being_erased_elsewhere(
    client: Client, read: Submit, house: House
) -> None:
    job = read()
    connections = client._open()
    away = Path(house.payload_url).with_name("away")
    Path(house.payload_url).rename(away)
    Path(house.payload_url).write_text("no directory")
    try:
        (erased,) = client.purge([job])
    finally:
        Path(house.payload_url).unlink()
        away.rename(house.payload_url)

    assert erased.document is DocumentFate.PENDING
    assert house.query("SELECT count(*) FROM results") == [(0,)]
    assert house.query("SELECT count(*) FROM discarded_payloads WHERE discarded_at IS NOT NULL") == [(1,)]
    assert connections is client._open()
