"""What both kinds of client promise beside jobs, on a fake fleet as on a real one: callbacks, records, erasure."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pecia import (
    CaptionVideo,
    Client,
    Document,
    DocumentFate,
    DocumentType,
    FailureCode,
    JobState,
    Lane,
    NoticeType,
    Page,
    Percentiles,
    ReadDocument,
    Webhook,
    errors,
)
from pecia.accounts import Scope
from pecia.webhooks import verify
from pecia_schemas.results import Timings, TokenUsage
from tests.shared.contract_fleets import client, fleet, gateway, real_fleet
from tests.shared.fixture_types import Picture
from tests.shared.limits import WAIT_S
from tests.shared.samples import page

__all__ = ["client", "fleet", "gateway", "real_fleet"]

PDF = b"%PDF-1.7"
HOOK = "https://example.org/hook"


def test_a_callback_tells_of_the_end_and_can_be_verified(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", FailureCode.DAMAGED])
    job = client.submit(ReadDocument(PDF), webhook=HOOK, metadata={"ward": "7"})
    assert fleet.callbacks == []
    fleet.finish(job)
    (callback,) = fleet.callbacks
    notice = verify(callback.body, callback.headers, fleet.webhook_secret)
    assert (callback.url, notice.type, notice.data.job_id) == (HOOK, NoticeType.PARTIAL, job.id)
    assert (notice.data.progress, notice.data.metadata) == (job.refresh().progress, {"ward": "7"})
    assert (notice.data.created_at, notice.data.finished_at) == (job.submitted_at, job.finished_at)
    with pytest.raises(errors.WebhookVerificationError):
        verify(callback.body + b" ", callback.headers, fleet.webhook_secret)


def test_a_callback_says_why_a_job_failed_and_each_end_has_its_own(fleet: Any, client: Client) -> None:
    fleet.fails(ReadDocument, FailureCode.ENCRYPTED, times=1)
    failed = client.submit(ReadDocument(PDF), webhook=HOOK)
    fleet.finish(failed)
    client.submit(ReadDocument(PDF), webhook=HOOK).cancel()
    client.submit(ReadDocument(PDF), webhook=HOOK, expires=timedelta(hours=1))
    fleet.advance(timedelta(hours=2))
    assert [callback.notice.type for callback in fleet.callbacks] == [
        "job.failed",
        "job.cancelled",
        "job.expired",
    ]
    assert fleet.callbacks[0].notice.data.failure is FailureCode.ENCRYPTED
    failed.refresh().retry()
    fleet.finish()
    assert [callback.notice.type for callback in fleet.callbacks][3:] == ["job.succeeded"]


def test_parts_are_told_to_who_asks_for_them_in_an_order_that_can_be_told(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, Document(pages=(page(1), page(2, verdict="review"))))
    hook = Webhook.model_validate({"url": HOOK, "events": ["part.done", "job.succeeded"]})
    job = client.submit(ReadDocument(PDF), webhook=hook)
    fleet.finish(job)
    told = sorted((one.notice for one in fleet.callbacks), key=lambda notice: notice.data.sequence)
    assert [notice.type for notice in told] == ["part.done", "part.done", "job.succeeded"]
    assert [notice.data.part and notice.data.part.number for notice in told] == [1, 2, None]
    assert [notice.data.progress.done for notice in told] == [1, 2, 2]
    assert [notice.data.needs_review for notice in told] == [0, 1, 1]
    assert [notice.data.state for notice in told] == ["running", "running", "succeeded"]
    assert [notice.data.finished_at is None for notice in told] == [True, True, False]
    ends = [event for event in job.events() if event.state == "done" and event.part_id]
    of_parts = {notice.data.part.id: notice.data.sequence for notice in told if notice.data.part}
    assert of_parts == {event.part_id: event.sequence for event in ends if event.part_id in of_parts}
    assert told[-1].data.sequence == list(job.events())[-1].sequence

    fleet.answers(CaptionVideo, segments=["one", "two"], summary="both")
    fleet.finish(client.submit(CaptionVideo(PDF), webhook=hook))
    parts = [one.notice.data.part for one in fleet.callbacks[len(told) :] if one.notice.data.part]
    assert [(part.stage, part.number) for part in parts] == [("caption", 1), ("caption", 2), ("summarize", 3)]


@pytest.mark.servers
@pytest.mark.operators
def test_a_purge_tells_what_it_erased(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", FailureCode.DAMAGED])
    job = client.submit(ReadDocument(PDF), webhook=HOOK)
    fleet.finish(job)
    (asked,) = client.purge([job], dry_run=True)
    assert (asked.results, asked.deliveries, asked.reasons, asked.document) == (1, 1, 1, None)
    (erased,) = client.purge([job], reason="asked for")
    assert erased == asked.model_copy(update={"document": DocumentFate.ERASED})
    assert client.purge([job]) == []
    assert [event.reason for event in job.events()] == [None] * len(list(job.events()))


@pytest.mark.servers
def test_a_purge_cancels_what_runs_and_no_callback_tells_of_it(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF), webhook=HOOK)
    fleet.start(job)
    client.purge([job])
    assert job.refresh().state is JobState.CANCELLED
    assert fleet.callbacks == []
    with pytest.raises(errors.RetryRefusedError, match="erased"):
        job.retry()


@pytest.mark.servers
def test_a_document_that_another_job_holds_stays_and_a_purged_key_is_free(client: Client) -> None:
    first, second = (client.submit(ReadDocument(PDF), idempotency_key=key) for key in ("scan-1", "scan-2"))
    assert client.purge([first])[0].document is DocumentFate.SHARED
    assert client.purge([second])[0].document is DocumentFate.ERASED
    again = client.submit(ReadDocument(b"other"), idempotency_key="scan-1")
    assert (again.created, again.id != first.id) == (True, True)


@pytest.mark.servers
@pytest.mark.operators
def test_jobs_to_purge_are_found_by_age_and_metadata(fleet: Any, client: Client) -> None:
    old, other = (client.submit(ReadDocument(b"old"), metadata={"ward": ward}) for ward in ("7", "9"))
    fleet.advance(timedelta(days=2))
    new = client.submit(ReadDocument(b"new"), metadata={"ward": "7"})

    def meant(**which: Any) -> set[Any]:
        return {one.job_id for one in client.purge(dry_run=True, **which)}

    assert meant(metadata={"ward": "8"}) == set()
    assert meant(before=timedelta(days=1)) == {old.id, other.id}
    assert meant(before=timedelta(days=1), metadata={"ward": "7"}) == {old.id}
    assert meant(jobs=[new, other], before=timedelta(days=1)) == {other.id}
    assert {one.job_id for one in client.purge(metadata={"ward": "7"})} == {old.id, new.id}
    with pytest.raises(errors.InvalidOptionError, match="what to purge"):
        client.purge()
    with pytest.raises(errors.JobNotFoundError):
        client.purge([uuid4()])
    assert client.purge([]) == []


@pytest.mark.servers
@pytest.mark.operators
def test_the_trail_names_who_read_and_who_erased(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    fleet.client("ward-3").job(job.id).result(timeout=WAIT_S)
    list(job.pages(timeout=WAIT_S))
    client.purge([job], reason="asked for")
    entries = [(one.actor, str(one.action), one.reason, one.counts) for one in client.audit(job=job)]
    assert entries == [
        ("client:test", "erased", "asked for", {"results": 2, "deliveries": 0, "reasons": 0, "documents": 1}),
        ("client:test", "pages", None, {}),
        ("client:ward-3", "result", None, {}),
    ]
    assert [one.actor for one in client.audit(client="ward-3")] == ["client:ward-3"]
    never_came = client.submit(ReadDocument("https://example.org/scan.pdf"))
    client.purge([never_came])
    assert [one.counts["documents"] for one in client.audit(job=never_came)] == [0]
    assert list(client.audit(job=uuid4())) == []
    fleet.advance(timedelta(hours=2))
    assert list(client.audit(since=timedelta(hours=1))) == []


@pytest.mark.servers
@pytest.mark.operators
def test_keys_of_the_gateway_are_made_replaced_and_ended(client: Client) -> None:
    tenant = uuid4().hex  # keys outlive a test
    key, shown = client.add_key(tenant, "intake", scopes=[Scope.SUBMIT], expires=timedelta(days=30))
    assert shown.startswith(f"pecia_{key.id.hex}_")
    fresh, _ = client.rotate_key(key.id, overlap=timedelta())
    client.revoke_key(fresh.id)
    listed = {one.id: (one.is_valid, taken.pages_of_day) for one, taken in client.keys(tenant)}
    assert listed == {key.id: (False, 0), fresh.id: (False, 0)}
    assert client.keys(uuid4().hex) == []
    with pytest.raises(errors.InvalidOptionError, match="does not exist"):
        client.revoke_key(uuid4())


@pytest.mark.servers
@pytest.mark.operators
def test_usage_sums_what_parts_have_taken_by_group_time_and_job(fleet: Any, client: Client) -> None:
    def read(number: int) -> Page:
        usage = TokenUsage(prompt=100 * number, image=80, output=10)
        timings = Timings(queued=number, decode=0.5, engine=2.0, first_token=0.1 * number)
        return page(number, text="x", engine="e1", usage=usage, timings=timings)

    fleet.answers(ReadDocument, Document(pages=tuple(map(read, (1, 2, 3)))))
    document = client.submit(ReadDocument(PDF, document_type=DocumentType.CHART), metadata={"ward": "7"})
    video = client.submit(CaptionVideo(b"video"), priority=Lane.BULK)
    fleet.finish()

    total = client.usage().total
    assert (total.jobs, total.parts, total.pages, total.segments, total.reused) == (2, 4, 3, 1, 0)
    assert (total.tokens.prompt, total.tokens.image, total.tokens.output) == (600, 240, 30)
    assert (total.decode_s, total.engine_s) == (1.5, 6.0)
    assert total.queued_s is not None
    assert (total.queued_s.p50, total.queued_s.p95) == pytest.approx((1.5, 2.85))
    assert total.first_token_s is not None
    assert (total.first_token_s.p50, total.first_token_s.p95) == pytest.approx((0.2, 0.29))
    expected: dict[str, list[str | None]] = {
        "document_type": ["chart", None],
        "kind": ["document.read", "video.caption"],
        "lane": ["bulk", "normal"],
        "engine": ["e1", "fake"],
        "metadata:ward": ["7", None],
    }
    for by, names in expected.items():
        usage = client.usage(by=by)
        assert [group.name for group in usage.groups] == names
        assert sum(group.parts for group in usage.groups) == usage.total.parts == 4
    assert (document.usage().pages, document.usage().tokens.prompt) == (3, 600)
    assert video.usage().queued_s == Percentiles(p50=0, p95=0)
    fleet.advance(timedelta(hours=2))
    recent = client.usage(since=timedelta(hours=1), by="lane")
    assert (recent.total.parts, recent.groups, recent.total.queued_s) == (0, (), None)
    with pytest.raises(errors.InvalidOptionError, match="grouped by"):
        client.usage(by="weather")


@pytest.mark.servers
@pytest.mark.operators
def test_what_may_be_mended_is_dead_and_can_be_tried_again(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two", "three"])
    fleet.answers(
        ReadDocument, pages=[FailureCode.TIMEOUT, FailureCode.DAMAGED, FailureCode.POISONED], times=1
    )
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    dead = client.dead_parts()
    assert [(part.number, part.failure.code) for part in dead] == [
        (3, FailureCode.POISONED),
        (1, FailureCode.TIMEOUT),
    ]
    assert [part.number for part in client.dead_parts(code=FailureCode.TIMEOUT, job=job.id)] == [1]
    assert [part.number for part in client.dead_parts(limit=1, since=timedelta(hours=1))] == [3]
    assert client.dead_parts(job=uuid4()) == client.dead_parts(since=timedelta(seconds=-60)) == []
    one = client.dead_part(dead[1].id)
    assert [(event.state, event.attempt, event.reason) for event in one.events] == [
        ("running", 1, None),
        ("failed", 1, "timeout"),
    ]
    assert (one.attempts, one.job_state, one.kind) == (1, JobState.FAILED, "document.read")
    assert [again.id for again in client.retry_dead([dead[1]])] == [job.id]
    fleet.finish(job)
    assert [page.text for page in job.result(timeout=WAIT_S).pages] == ["one"]
    assert [part.number for part in client.dead_parts()] == [3]


@pytest.mark.servers
@pytest.mark.operators
def test_what_is_final_or_unwanted_is_not_dead(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=[FailureCode.TIMEOUT, "two"])
    job = client.submit(ReadDocument(PDF))
    fleet.step(job)
    fleet.step(job)
    (part,) = client.dead_parts()
    with pytest.raises(errors.RetryRefusedError, match="running"):
        client.retry_dead([part])
    job.cancel()
    assert client.dead_parts() == []
    with pytest.raises(errors.InvalidOptionError, match="from 0"):
        client.dead_parts(limit=-1)
    with pytest.raises(errors.InvalidOptionError, match="does not exist"):
        client.dead_part(part.id)
    with pytest.raises(errors.InvalidOptionError, match="final"):
        client.dead_parts(code=FailureCode.DAMAGED)


def test_a_job_says_that_no_worker_serves_it(fleet: Any, client: Client, picture: Picture) -> None:
    document, page = client.submit(ReadDocument(PDF)), client.submit(ReadDocument(picture()))
    assert (document.hint(), page.hint()) == (None, None)
    with fleet.outage("workers"):
        assert "cuts documents" in str(document.hint())
        assert "reads pages" in str(page.hint())
        assert set(client.group([document, page]).hints()) == {document.id, page.id}
    fleet.finish()
    assert document.refresh().hint() is None


def test_urgent_jobs_run_before_others(fleet: Any, client: Client) -> None:
    bulk, urgent = (client.submit(ReadDocument(PDF), priority=lane) for lane in (Lane.BULK, Lane.URGENT))
    fleet.step()
    fleet.step()
    assert (urgent.refresh().state, bulk.refresh().state) == (JobState.SUCCEEDED, JobState.QUEUED)
