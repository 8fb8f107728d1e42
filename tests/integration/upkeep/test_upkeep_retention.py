"""What the settings keep for a time goes when that is over, and nothing else does."""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import Client, InvalidSourceError, Job, JobErasedError, JobNotFoundError, ReadDocument, Submission
from pecia_schemas.failures import FailureCode
from pecia_workers.ledger.retention import JOBS, PayloadsStayedError, StraySearch, forget, retention_steps
from tests.shared.fixture_types import Make, Picture
from tests.shared.house import House
from tests.shared.limits import eventually

pytestmark = pytest.mark.gate

DAY = timedelta(days=1)
LONG_AGO = datetime.now(UTC) - 2 * DAY


Keep = Callable[..., dict[str, int]]


@pytest.fixture
def keep(house: House) -> Keep:
    """Runs every step of retention once, or as many times at once as asked, and returns how much they did."""

    def run(*, instances: int = 1, **kept: Any) -> dict[str, int]:
        steps = retention_steps(house.settings(**kept))
        steps.pop("strays", None)  # it looks at a 256th of the store: its test runs it alone

        async def run_all(database: AsyncEngine) -> dict[str, int]:
            return {
                name: sum(await asyncio.gather(*[step(database) for _ in range(instances)]))
                for name, step in steps.items()
            }

        done = house.ask(run_all, connections=instances)
        return {name: number for name, number in done.items() if number or name != "batches"}

    return run


Read = Callable[..., Job[Any]]


@pytest.fixture
def read(client: Client, scribe: Any, picture: Picture) -> Read:
    """Submits a picture and has it read."""

    def run(content: bytes | None = None, **options: Any) -> Job[Any]:
        job = client.submit(ReadDocument(content or picture()), **options)
        scribe.read(job.id)
        return job.refresh()

    return run


def stored(payload_url: str) -> list[Path]:
    return [path for path in Path(payload_url).rglob("*") if path.is_file()]


def age(tables: Any, *jobs: Job[Any]) -> None:
    """Let the jobs have ended two days ago."""
    ids = [job.id for job in jobs]
    tables.query("UPDATE jobs SET finished_at = %s WHERE id = ANY(%s)", LONG_AGO, ids)


def test_nothing_goes_unless_a_setting_says_so(tables: Any, keep: Keep, read: Read, payload_url: str) -> None:
    job = read()
    tables.query("UPDATE jobs SET finished_at = now() - interval '100 years'")
    assert keep() == {"payloads": 0}
    assert job.result().pages[0].text == "text"
    assert len(stored(payload_url)) == 1


def test_a_document_goes_once_the_last_job_that_was_given_it_has_been_over_for_long_enough(
    tables: Any, keep: Keep, read: Read, payload_url: str
) -> None:
    first, second = read(), read()
    age(tables, first)
    assert keep(keep_payloads=DAY) == {"payload_retention": 1, "payloads": 0}
    assert len(stored(payload_url)) == 1
    age(tables, second)
    assert keep(keep_payloads=DAY) == {"payload_retention": 1, "payloads": 1}
    assert stored(payload_url) == []
    assert second.result().pages[0].text == "text"


def test_the_password_of_a_document_goes_with_it_and_no_sooner(
    tables: Any, client: Client, keep: Keep, scribe: Any, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture(), language="ko", password="Quillfeather"))
    scribe.read(job.id)
    keep(keep_payloads=DAY)
    ((before,),) = [row.values() for row in tables.query("SELECT task->>'password' FROM jobs")]
    age(tables, job)
    keep(keep_payloads=DAY)
    (after,) = tables.query("SELECT * FROM jobs")

    assert before == "Quillfeather"
    assert "Quillfeather" not in str(after)
    assert after["task"]["language"] == "ko"


def test_the_document_of_a_job_that_is_not_over_stays_however_old_it_is(
    tables: Any, client: Client, keep: Keep, picture: Picture, payload_url: str
) -> None:
    client.submit(ReadDocument(picture()))
    tables.query("UPDATE jobs SET created_at = %s, started_at = %s", LONG_AGO, LONG_AGO)
    keep(keep_payloads=DAY, keep_jobs=DAY, keep_results=DAY)
    assert len(stored(payload_url)) == 1
    assert tables.query("SELECT count(*) AS jobs FROM jobs") == [{"jobs": 1}]


def test_a_document_submitted_again_stays(tables: Any, keep: Keep, read: Read, payload_url: str) -> None:
    age(tables, read())
    keep(keep_payloads=DAY)
    again = read()
    assert keep(keep_payloads=DAY) == {"payload_retention": 0, "payloads": 0}
    assert len(stored(payload_url)) == 1
    assert again.created


def test_a_document_that_the_store_does_not_let_go_of_keeps_no_other_from_leaving_and_is_tried_again(
    tables: Any, keep: Keep, read: Read, picture: Picture, payload_url: str
) -> None:
    jobs = [read(picture(shade=shade)) for shade in (1, 2, 3)]
    age(tables, *jobs)
    stuck = stored(payload_url)[0]
    content = stuck.read_bytes()
    stuck.unlink()
    (stuck / "in the way").mkdir(parents=True)

    with pytest.raises(PayloadsStayedError):
        keep(keep_payloads=DAY)
    assert tables.query("SELECT payload FROM discarded_payloads WHERE discarded_at IS NOT NULL") == [
        {"payload": stuck.name}
    ]

    (stuck / "in the way").rmdir()
    stuck.rmdir()
    stuck.write_bytes(content)
    assert keep() == {"payloads": 1}
    assert stored(payload_url) == []


def test_a_document_that_was_removed_by_an_upkeep_that_crashed_is_missed_by_the_next_submit(
    tables: Any, client: Client, keep: Keep, scribe: Any, payload_url: str
) -> None:
    reference = client._open().payloads.put(b"%PDF-1.7")
    job = client.submit(ReadDocument(reference))
    scribe.fail(job.id, code=FailureCode.DAMAGED, stage="ingest")
    age(tables, job)
    (document,) = stored(payload_url)
    document.unlink()
    (document / "in the way").mkdir(parents=True)
    with pytest.raises(PayloadsStayedError):
        keep(keep_payloads=DAY)
    (document / "in the way").rmdir()
    document.rmdir()

    with pytest.raises(InvalidSourceError):
        client.submit(ReadDocument(reference))


def test_a_document_of_a_submit_that_failed_goes_once_it_is_older_than_documents_are_kept(
    client: Client, picture: Picture, house: House, payload_url: str
) -> None:
    store = client._open().payloads
    for age_in_days, content in enumerate([b"young", b"a day old", b"three days old"]):
        name = store.put(content).sha256
        written = (datetime.now(UTC) - age_in_days * DAY).timestamp()
        os.utime(Path(payload_url) / "sha256" / name[:2] / name, (written, written))
    held = client.submit(ReadDocument(picture()))
    for path in stored(payload_url):
        if path.stat().st_size == len(picture()):
            os.utime(path, (0, 0))

    async def search_all(database: AsyncEngine) -> int:
        settings = house.settings(keep_payloads=2 * DAY)
        search, remove = StraySearch(settings), retention_steps(settings)["payloads"]
        found = sum([await search(database) for _ in range(256)])
        assert await search(database) == 0, "it rests for a day"
        return found + await remove(database)

    assert house.ask(search_all) == 2
    assert {path.read_bytes() for path in stored(payload_url)} == {b"young", b"a day old", picture()}
    assert held.refresh().state == "queued"


def test_a_result_goes_after_its_time_and_says_so_while_the_counters_stay(
    tables: Any, keep: Keep, read: Read, client: Client
) -> None:
    old, young = read(), read()
    age(tables, old)

    assert keep(keep_results=DAY)["result_retention"] == 1

    with pytest.raises(JobErasedError):
        old.refresh().result()
    assert (old.progress.done, old.progress.total, old.state) == (1, 1, "succeeded")
    assert young.result().pages[0].text == "text"
    (erased,) = client.audit(job=old)
    assert (erased.job_id, erased.actor, erased.reason) == (old.id, "upkeep", "retention")
    assert erased.counts == {"results": 1}


def test_a_label_goes_with_its_result_a_batch_with_its_jobs(tables: Any, keep: Keep, client: Client) -> None:
    (job,) = client.submit_many([Submission(ReadDocument(b"%PDF-1.7"), label="a.pdf")], batch="week")
    client.submit_many([ReadDocument(b"%PDF-1.7")], batch="kept")
    job.cancel()
    age(tables, job)

    assert keep(keep_results=DAY)["result_retention"] == 1
    assert (job.label, job.refresh().label) == ("a.pdf", None)
    keep(keep_jobs=DAY)
    assert len(tables.query("SELECT name FROM batches")) == 2, "they were opened today"
    tables.query("UPDATE batches SET opened_at = %s", LONG_AGO)
    assert keep()["batches"] == 1
    assert tables.query("SELECT name FROM batches") == [{"name": "kept"}]


def test_a_result_that_was_retried_lately_is_kept(tables: Any, keep: Keep, read: Read) -> None:
    job = read()
    age(tables, job)
    with psycopg.connect(tables.database_url) as retrying:
        retrying.execute("UPDATE jobs SET finished_at = NULL, state = 'running' WHERE id = %s", (job.id,))
        assert keep(keep_results=DAY)["result_retention"] == 0
    assert tables.query("SELECT count(*) AS results FROM results") == [{"results": 1}]


def test_events_go_by_their_own_age(tables: Any, keep: Keep, read: Read) -> None:
    old, young = read(), read()
    tables.query("UPDATE job_events SET at = %s WHERE job_id = %s", LONG_AGO, old.id)
    assert keep(keep_events=DAY)["event_retention"] == len(list(young.events()))
    assert list(old.events()) == []


def test_callbacks_go_once_they_have_arrived_or_were_given_up(tables: Any, keep: Keep, read: Read) -> None:
    for _ in range(3):
        read(webhook="https://hook.example/")
    tables.query(
        """UPDATE deliveries SET state = 'delivered', finished_at = %s
           WHERE id IN (SELECT id FROM deliveries LIMIT 2)""",
        LONG_AGO,
    )
    tables.query("UPDATE deliveries SET created_at = %s, next_at = %s", LONG_AGO, LONG_AGO)

    assert keep(keep_deliveries=DAY)["delivery_retention"] == 2
    assert tables.query("SELECT state FROM deliveries") == [{"state": "pending"}]


def test_with_a_job_goes_all_that_belongs_to_it_and_its_document(  # noqa: PLR0917  fixtures
    tables: Any, client: Client, keep: Keep, read: Read, picture: Picture, payload_url: str
) -> None:
    old, young = read(webhook="https://hook.example/"), read(picture(shade=1))
    age(tables, old)

    assert keep(keep_jobs=DAY) == {"job_retention": 1, "payloads": 1}

    with pytest.raises(JobNotFoundError):
        client.job(old.id)
    left = """SELECT job_id FROM parts UNION SELECT job_id FROM results UNION SELECT job_id FROM job_events
              UNION SELECT job_id FROM deliveries"""
    assert [row["job_id"] for row in tables.query(left)] == [young.id]
    assert len(stored(payload_url)) == 1
    assert young.result().pages[0].text == "text"
    assert [entry.counts for entry in client.audit(job=old.id)] == [{"jobs": 1}]


def test_the_audit_trail_goes_by_its_own_age(tables: Any, client: Client, keep: Keep, read: Read) -> None:
    job = read()
    job.result()
    client.purge([read()])
    tables.query("UPDATE reads SET at = %s", LONG_AGO)
    tables.query("UPDATE erasures SET at = %s", LONG_AGO)
    job.result()
    assert keep(keep_audit=DAY)["audit_retention"] == 2
    assert len(list(client.audit())) == 1


def test_what_has_left_the_store_is_remembered_for_a_day_and_no_longer(
    tables: Any, client: Client, keep: Keep, read: Read
) -> None:
    client.purge([read()])
    keep()
    assert len(tables.query("SELECT payload FROM discarded_payloads")) == 1
    tables.query("UPDATE discarded_payloads SET erased_at = %s", LONG_AGO)
    keep()
    assert tables.query("SELECT payload FROM discarded_payloads") == []


def test_any_number_of_instances_erases_everything_once(  # noqa: PLR0917  fixtures
    tables: Any, client: Client, keep: Keep, read: Read, picture: Picture, payload_url: str
) -> None:
    jobs = [read(picture(shade=number % 4)) for number in range(12)]
    age(tables, *jobs)
    done = keep(keep_payloads=DAY, keep_results=DAY, instances=4)
    assert done["payload_retention"] == done["result_retention"] == 12
    assert done["payloads"] == 4
    assert stored(payload_url) == []
    told = [(entry.job_id, tuple(entry.counts)) for entry in client.audit()]
    assert sorted(told) == sorted((job.id, (what,)) for job in jobs for what in ("documents", "results"))


def test_a_round_goes_on_until_nothing_is_left(tables: Any, keep: Keep, payload_url: str) -> None:
    names = add_old_jobs(tables, 1_200)
    for name in names:
        path = Path(payload_url) / "sha256" / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"page")

    done = keep(keep_payloads=DAY, keep_results=DAY, keep_events=DAY, keep_jobs=DAY)

    assert done == {
        "payload_retention": 1_200,
        "result_retention": 1_200,
        "event_retention": 1_200,
        "job_retention": 1_200,
        "payloads": 1_200,
    }
    assert stored(payload_url) == []


def add_old_jobs(tables: Any, count: int) -> list[str]:
    """Jobs of one page that ended long ago, each with a document of its own; return the names of those."""
    tables.query(
        """INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, total, done,
                             finished_at)
           SELECT gen_random_uuid(), 'document.read', 'bulk', 'succeeded', '{}', '',
                  encode(sha256(n::text::bytea), 'hex'), n::text, 'test', 1, 1, %s
           FROM generate_series(1, %s) AS n""",
        LONG_AGO,
        count,
    )
    tables.query(
        """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, state)
           SELECT gen_random_uuid(), id, 'read', 0, 'bulk', 1, 'done' FROM jobs"""
    )
    tables.query(
        "INSERT INTO results (part_id, job_id, ordinal, attempt, content) SELECT id, job_id, 0, 1, '{}' FROM parts"
    )
    tables.query(
        "INSERT INTO job_events (job_id, state, actor, at) SELECT id, 'succeeded', 'test', %s FROM jobs",
        LONG_AGO,
    )
    return [str(row["payload"]) for row in tables.query("SELECT payload FROM jobs")]


def test_one_transaction_takes_a_bounded_number_of_parts(tables: Any, house: House) -> None:
    for _ in range(4):
        tables.add_job(parts=3)
    tables.query("UPDATE jobs SET state = 'failed', finished_at = %s", LONG_AGO)

    def forgotten(limit: int) -> int:
        return house.ask(lambda database: forget(database, [JOBS], age=DAY, limit=limit))

    assert [forgotten(limit) for limit in (4, 1, 100)] == [2, 1, 1]


def test_upkeep_removes_documents_that_a_purge_could_not(
    client: Client, read: Read, settings_for: Make, keeping: Make, payload_url: str
) -> None:
    job = read()
    away = Path(payload_url).with_name("away")
    Path(payload_url).rename(away)
    Path(payload_url).write_text("no directory")
    client.purge([job])
    Path(payload_url).unlink()
    away.rename(payload_url)
    assert len(stored(payload_url)) == 1

    with keeping(settings_for(payload_url=payload_url)):
        eventually(lambda: not stored(payload_url))


def test_a_removal_that_breaks_off_keeps_no_connection(
    tables: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep has few, and what keeps parts on their way needs them."""
    names = [f"{number:064x}" for number in range(20)]
    tables.query(
        "INSERT INTO discarded_payloads (payload, discarded_at) SELECT unnest(%s::text[]), now()", names
    )
    silent = asyncio.Event()

    class Store:
        async def delete_many(self, _names: object) -> None:
            if not silent.is_set():  # the transaction was idle for too long
                silent.set()
                raise OperationalError("", None, Exception())
            await asyncio.Event().wait()

    monkeypatch.setattr("pecia_workers.ledger.retention._store", lambda _: Store())

    async def story(database: AsyncEngine) -> str:
        with pytest.raises(OperationalError):
            await retention_steps(house.settings())["payloads"](database)
        return database.pool.status()

    assert "Current Checked out connections: 0" in house.ask(story, connections=4)
