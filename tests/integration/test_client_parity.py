"""Both clients do the same: every method is run on both, against real servers, and what they tell is compared."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pecia import (
    AsyncClient,
    CaptionVideo,
    Client,
    ClientSettings,
    FailureCode,
    Job,
    JobGroup,
    PeciaError,
    ReadDocument,
    SubmitManyError,
    Webhook,
)
from synced import synced

PDF = b"%PDF-1.7"
Picture = Callable[..., bytes]

_ID_OR_TIME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\d \S+")


@dataclass
class World:
    """A client of either kind before real servers, and a fleet of one."""

    client: Any
    scribe: Any
    picture: Picture
    directory: Path
    payloads: Path
    run: str
    """Tells the jobs of one client from those of the other."""

    def submit(self, content: bytes | None = None, **options: Any) -> Any:
        return self.client.submit(ReadDocument(content or self.picture()), metadata=self.tag, **options)

    def many(self, number: int) -> Any:
        tasks = [ReadDocument(self.picture(shade=shade)) for shade in range(number)]
        return self.client.submit_many(tasks, metadata=self.tag)

    def documents(self) -> int:
        """Return how many are in the payload store."""
        return sum(path.is_file() for path in self.payloads.rglob("*"))

    @property
    def tag(self) -> dict[str, str]:
        return {"run": self.run}

    def cut(self, pages: int) -> Any:
        job = self.submit(PDF)
        self.scribe.cut(job.id, pages)
        return job

    def dead(self) -> Any:
        job = self.submit()
        self.scribe.fail(job.id, code=FailureCode.ENGINE_ERROR)
        return job

    @contextmanager
    def meanwhile(self, step: Callable[[], Any]) -> Iterator[None]:
        timer = threading.Timer(0.15, step)
        timer.start()
        try:
            yield
        finally:
            timer.join()


def refusal(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, str]:
    """Return the error that a call raises: its type, and its sentence without ids and times."""
    with pytest.raises((PeciaError, TypeError)) as raised:
        call(*args, **options)
    return type(raised.value).__name__, _ID_OR_TIME.sub("…", str(raised.value))


def seen(job: Any) -> tuple[Any, ...]:
    """Return what its attributes tell, but for ids and times."""
    times = [moment is not None for moment in (job.submitted_at, job.finished_at, job.erased_at)]
    return job.kind, job.state, job.lane, job.progress, job.failure, job.created, job.done, times


def written(world: World, job: Any) -> Any:
    """Return what its row says that its handle does not."""
    query = """
        SELECT webhook, client, round(extract(epoch FROM not_before - created_at) / 3600),
               round(extract(epoch FROM expires_at - created_at) / 3600)
        FROM jobs WHERE id = %s
    """
    with psycopg.connect(world.scribe.database_url) as connection:
        return connection.execute(query, [job.id]).fetchone()


def submit(world: World) -> Any:
    options: dict[str, Any] = {
        "idempotency_key": world.run,
        "priority": "urgent",
        "not_before": timedelta(hours=1),
    }
    job = world.submit(**options, webhook="https://example.org/hook", expires=timedelta(days=1))
    again = world.submit(**options, webhook=Webhook.model_validate({"url": "https://example.org/hook"}))
    path = world.directory / "scan.png"
    path.write_bytes(world.picture())
    sources: list[Any] = [path, str(path), io.BytesIO(world.picture())]
    return [
        *(seen(one) for one in (job, again)),
        dict(job.metadata) == world.tag,
        written(world, job),
        again.id == job.id,
        *(seen(world.client.submit(ReadDocument(source))) for source in sources),
        refusal(world.submit, PDF, **options),
        refusal(world.submit, webhook="nowhere"),
        refusal(world.client.submit, ReadDocument(world.directory / "missing")),
        refusal(world.client.submit, ReadDocument(io.StringIO("text"))),  # type: ignore[arg-type]
    ]


def submit_many(world: World) -> Any:
    contents = [world.picture(shade=shade) for shade in range(3)]
    options: dict[str, Any] = {"not_before": timedelta(hours=1), "expires": timedelta(days=1)}
    late = world.client.submit_many(
        map(ReadDocument, contents), webhook="https://example.org/hook", **options
    )
    first = world.client.submit_many(map(ReadDocument, contents[:2]), idempotency_prefix=world.run)
    again = world.client.submit_many(map(ReadDocument, contents), idempotency_prefix=world.run)
    with pytest.raises(SubmitManyError) as some:
        world.client.submit_many([ReadDocument(contents[0]), ReadDocument(world.directory / "missing")])
    named = [f"{world.run}/named/{number}" for number in range(3)]
    own = world.client.submit_many(map(ReadDocument, contents), idempotency_keys=named)
    return [
        [seen(job) for job in own],
        [seen(job) for job in (*first, *again)],
        [written(world, job) for job in late],
        [job.id for job in first] == [job.id for job in again[:2]],
        str(some.value),
        {number: str(error) for number, error in some.value.failures.items()},
        [seen(job) for job in some.value.accepted],
        len(world.client.submit_many([])),
    ]


def job(world: World) -> Any:
    one = world.submit()
    return [
        seen(world.client.job(str(one.id), ReadDocument)),
        refusal(world.client.job, one.id, CaptionVideo),
        refusal(world.client.job, uuid4()),
        refusal(world.client.job, "nonsense"),
    ]


def jobs(world: World) -> Any:
    group = [world.submit() for _ in range(5)]
    group[0].cancel()

    def found(**asked: Any) -> list[int]:
        order = [job.id for job in group]
        return [order.index(job.id) for job in world.client.jobs(metadata=world.tag, **asked)]

    return [
        found(),
        found(page_size=2),
        found(limit=3, page_size=2),
        found(limit=0),
        found(status="cancelled"),
        found(status=["queued"], kind="document.read", since=timedelta(minutes=5)),
        found(kind="video.caption"),
        refusal(world.client.jobs, status="lost"),
    ]


def usage(world: World) -> Any:
    world.scribe.read(world.submit().id)
    (figures,) = (
        group
        for group in world.client.usage(by="metadata:run", since=timedelta(hours=1)).groups
        if group.name == world.run
    )
    return figures.jobs, figures.pages, refusal(world.client.usage, by="weather")


def dead_parts(world: World) -> Any:
    of = world.dead().id
    (part,) = world.client.dead_parts(
        job=of, code=FailureCode.ENGINE_ERROR, since=timedelta(hours=1), limit=5
    )
    return (
        part.number,
        part.failure,
        part.events,
        refusal(world.client.dead_parts, code=FailureCode.ENCRYPTED),
    )


def dead_part(world: World) -> Any:
    (part,) = world.client.dead_parts(job=world.dead().id)
    events = world.client.dead_part(part.id).events
    return [event.state for event in events], refusal(world.client.dead_part, uuid4())


def retry_dead(world: World) -> Any:
    parts = world.client.dead_parts(job=world.dead().id)
    return [seen(job) for job in world.client.retry_dead(parts)], refusal(world.client.retry_dead, parts)


def purge(world: World) -> Any:
    group = world.client.group([world.submit(world.picture(shade=shade)) for shade in range(2)])
    world.scribe.read(group[0].id)

    def erased(**asked: Any) -> list[tuple[Any, ...]]:
        found = world.client.purge(**asked)
        return [(one.results, one.deliveries, one.reasons, one.document) for one in found]

    return [
        erased(metadata=world.tag, dry_run=True),
        world.documents(),
        erased(jobs=[group[0], str(group[1].id)], reason="asked for"),
        erased(jobs=[group[0]]),
        world.documents(),
        [seen(job) for job in group.refresh()],
        refusal(group[0].result),
        seen(
            again := world.submit(world.picture(shade=0))
        ),  # it was removed a moment ago, and is stored again
        erased(jobs=[again]),
        refusal(world.client.purge),
        refusal(world.client.purge, [uuid4()]),
    ]


def audit(world: World) -> Any:
    one = world.submit()
    world.scribe.read(one.id)
    one.result(timeout=5)
    list(one.pages())
    world.client.purge([one], reason="asked for")
    told = world.client.audit(job=one, since=timedelta(hours=1))
    other = list(world.client.audit(job=str(one.id), client="somebody else"))
    return [(entry.action, entry.actor, entry.reason, entry.counts) for entry in told], other


def told(world: World, endpoint: Any) -> Any:
    """Have a job told to an endpoint, and that delivery given up; return it."""
    one = world.submit()
    one.cancel()
    (delivery,) = world.client.deliveries(job=one, endpoint=endpoint)
    with psycopg.connect(world.scribe.database_url) as connection:
        connection.execute("UPDATE deliveries SET state = 'dead', finished_at = now()")
    return delivery


def look(delivery: Any) -> tuple[Any, ...]:
    return delivery.type, delivery.url, delivery.state, delivery.attempts, delivery.last_error


def add_endpoint(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/add", events=["job.failed", "part.done"])
    world.client.remove_endpoint(made)
    refused = (
        refusal(world.client.add_endpoint, "nowhere"),
        refusal(world.client.add_endpoint, "https://example.org", events=["job.lost"]),
    )
    return made.url, made.events, made.client, str(made.secret)[:6], refused


def endpoints(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/list")
    (found,) = world.client.endpoints()
    world.client.remove_endpoint(str(made.id))
    return found.id == made.id, found.secret, found.waiting, found.failures, world.client.endpoints()


def remove_endpoint(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/remove")
    delivery = told(world, made)
    world.client.remove_endpoint(made.id)
    return refusal(world.client.remove_endpoint, made), refusal(world.client.delivery, delivery)


def rotate_endpoint(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/rotate")
    again = world.client.rotate_endpoint(made, overlap=timedelta(hours=1))
    world.client.remove_endpoint(made)
    negative = refusal(world.client.rotate_endpoint, made, overlap=timedelta(-1))
    return (
        again.secret != made.secret,
        again.former_until is None,
        negative,
        refusal(world.client.rotate_endpoint, uuid4()),
    )


def client_test_endpoint(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/test")
    sent = world.client.test_endpoint(made)
    world.client.remove_endpoint(made)
    return look(sent), sent.job_id, refusal(world.client.test_endpoint, "nonsense")


def deliveries(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/deliveries")
    delivery = told(world, made)
    options: list[dict[str, Any]] = [
        {},
        {"state": "dead"},
        {"state": "pending"},
        {"since": timedelta(hours=1), "limit": 1},
    ]
    found = [[look(one) for one in world.client.deliveries(endpoint=made, **asked)] for asked in options]
    world.client.remove_endpoint(made)
    return look(delivery), found, refusal(world.client.deliveries, state="lost")


def delivery(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/delivery")
    found = look(world.client.delivery(told(world, made)))
    world.client.remove_endpoint(made)
    return found, refusal(world.client.delivery, uuid4())


def replay(world: World) -> Any:
    made = world.client.add_endpoint("https://example.org/replay")
    dead = told(world, made)
    world.client.replay([dead])
    again = look(world.client.delivery(dead))
    refused = refusal(world.client.replay, [dead]), refusal(world.client.replay, [uuid4()])
    world.client.remove_endpoint(made)
    return again, refused


def group(world: World) -> Any:
    one, other = world.submit(), world.submit()
    both = world.client.group([other, one, other])
    return [job.id == other.id for job in both], world.client.group([one]).cancel()


def close(world: World) -> Any:
    one = world.submit()
    world.client.close()
    world.client.close()
    return seen(one.refresh())


def job_refresh(world: World) -> Any:
    one = world.submit()
    before = seen(one)
    world.scribe.read(one.id)
    return before == seen(one), seen(one.refresh())


def job_wait(world: World) -> Any:
    one = world.submit()
    early = [refusal(one.wait, timeout=timeout) for timeout in (0, 0.1)]
    with world.meanwhile(lambda: world.scribe.read(one.id)):
        return early, seen(one.wait(timeout=20)), seen(one.wait(timeout=0))


def job_result(world: World) -> Any:
    partial, failed, cancelled = world.cut(2), world.submit(), world.submit()
    world.scribe.read(partial.id, 0, "one")
    world.scribe.fail(partial.id, 1)
    world.scribe.fail(failed.id, code=FailureCode.ENCRYPTED)
    cancelled.cancel()
    return partial.result(timeout=5), *(refusal(one.result, timeout=5) for one in (failed, cancelled))


def job_save(world: World) -> Any:
    one = world.submit()
    world.scribe.read(one.id, text="Amoxicillin")
    path = one.save(world.directory / f"{world.run}.txt", timeout=5)
    as_json = one.save(str(world.directory / world.run), "json").read_text()
    return path.read_text(), as_json, refusal(one.save, world.directory / "result.exe")


def job_pages(world: World) -> Any:
    one, video = world.cut(3), world.client.submit(CaptionVideo(PDF))
    for number in (2, 0):
        world.scribe.read(one.id, number, f"page {number}")
    with world.meanwhile(lambda: world.scribe.fail(one.id, 1)):
        in_order = [page.text for page in one.pages(timeout=20)]
    quickest = next(iter(one.pages(as_completed=True)))
    waiting = world.cut(1)
    late = refusal(list, waiting.pages(timeout=0))
    return in_order, quickest, late, refusal(list, video.pages())


def job_events(world: World) -> Any:
    one = world.submit()
    with world.meanwhile(lambda: world.scribe.read(one.id)):
        told = [(event.state, event.actor, event.attempt) for event in one.events(timeout=20)]
    return sorted(told, key=str), refusal(list, world.submit().events(timeout=0))


def job_hint(world: World) -> Any:
    one, over = world.submit(), world.submit()
    over.cancel()
    return one.hint(), over.hint()


def job_usage(world: World) -> Any:
    one = world.submit()
    return one.usage()


def job_cancel(world: World) -> Any:
    one = world.submit()
    return one.cancel(reason="enough"), seen(one), one.cancel(), [event.reason for event in one.events()]


def job_retry(world: World) -> Any:
    one = world.dead()
    (part,) = world.client.dead_parts(job=one.id)
    refused = refusal(world.submit().retry)
    return seen(one.retry()), refused, one.cancel(), refusal(one.retry, [uuid4()]), seen(one.retry([part.id]))


def group_refresh(world: World) -> Any:
    both = world.many(2)
    world.scribe.read(both[1].id)
    return [seen(one) for one in both.refresh()]


def group_hints(world: World) -> Any:
    both = world.many(2)
    both[0].cancel()
    return [both.hints().get(one.id) for one in both]


def group_as_completed(world: World) -> Any:
    three = world.many(3)
    order = [one.id for one in three]
    for number in (2, 0):
        world.scribe.read(order[number])
    stream = three.as_completed(timeout=5)
    done = {order.index(next(stream).id), order.index(next(stream).id)}
    return done, refusal(list, three.as_completed(timeout=0.1))


def group_wait(world: World) -> Any:
    both = world.many(2)
    both.cancel()
    return [seen(one) for one in both.wait(timeout=5)]


def group_results(world: World) -> Any:
    both = world.many(2)
    for number, one in enumerate(both):
        world.scribe.read(one.id, text=f"document {number}")
    failed = world.dead()
    return both.results(timeout=5), refusal(world.client.group([*both, failed]).results, timeout=5)


def group_cancel(world: World) -> Any:
    both = world.many(2)
    return both.cancel(reason="enough"), both.cancel(), [seen(one) for one in both.refresh()]


CLIENT = [
    submit,
    submit_many,
    job,
    jobs,
    usage,
    dead_parts,
    dead_part,
    retry_dead,
    purge,
    audit,
    add_endpoint,
    endpoints,
    remove_endpoint,
    rotate_endpoint,
    client_test_endpoint,
    deliveries,
    delivery,
    replay,
    group,
    close,
]
JOB = [
    job_refresh,
    job_wait,
    job_result,
    job_save,
    job_pages,
    job_events,
    job_hint,
    job_usage,
    job_cancel,
    job_retry,
]
GROUP = [group_refresh, group_hints, group_as_completed, group_wait, group_results, group_cancel]
TABLE: dict[str, Callable[[World], Any]] = {
    **{f"Client.{row.__name__.removeprefix('client_')}": row for row in CLIENT},
    **{f"Job.{row.__name__.removeprefix('job_')}": row for row in JOB},
    **{f"JobGroup.{row.__name__.removeprefix('group_')}": row for row in GROUP},
}


def test_the_table_has_every_method_of_the_clients() -> None:
    sequence = {"count", "index"}
    named = {
        f"{kind.__name__}.{name}"
        for kind in (Client, Job, JobGroup)
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name)) and name not in sequence
    }
    assert set(TABLE) == named


@pytest.fixture
def world(
    stores: dict[str, str], scribe: Any, picture: Picture, tmp_path: Path
) -> Iterator[Callable[[type], World]]:
    """Gives a client of one kind, which is closed when the test is over."""
    settings = ClientSettings(client_name="ward-7")
    with ExitStack() as open_clients:

        def make(kind: type) -> World:
            payloads = Path(stores["PECIA_PAYLOAD_URL"])
            client = kind(*stores.values(), settings=settings)
            context = synced(client) if kind is AsyncClient else client
            return World(
                open_clients.enter_context(context), scribe, picture, tmp_path, payloads, kind.__name__
            )

        yield make


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_both_clients_tell_the_same(row: Callable[[World], Any], world: Callable[[type], World]) -> None:
    assert row(world(Client)) == row(world(AsyncClient))
