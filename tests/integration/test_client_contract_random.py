"""Whatever clients and workers do, in whatever order: a fake fleet tells the same of it as a real one."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pecia import CaptionVideo, Client, FailureCode, Job, Lane, PeciaError, ReadDocument
from pecia.testing import FakeFleet
from tests.shared.contract_fleets import real_fleet
from tests.shared.fixture_types import Picture
from tests.shared.hand_made_pdfs import blank_pdf
from tests.shared.house import House
from tests.shared.limits import WAIT_S
from tests.shared.real_fleet import RealFleet

__all__ = ["real_fleet"]


Pair = tuple[Any, Any]
"""The same thing of the fake fleet and of the real one."""

PLANS: dict[bytes, Any] = {
    b"good": ["one", "two"],
    b"mixed": ["one", FailureCode.TIMEOUT],
    b"bad": [FailureCode.DAMAGED, FailureCode.ENGINE_ERROR],
    b"none": FailureCode.INTERNAL,
}
"""What becomes of a document with this content, until it is mended."""

keys = st.none() | st.sampled_from(["a", "b"])
times = st.none() | st.just(timedelta(hours=2))


class Twins(RuleBasedStateMachine):
    """Does everything twice, and compares what comes of it."""

    real: ClassVar[RealFleet]
    jobs = Bundle("jobs")

    @initialize()
    def begin(self) -> None:
        self.real.empty()
        self.fleets: Pair = (FakeFleet(held=True), self.real)
        self.clients: Pair = (self.fleets[0].client(), self.fleets[1].client())
        self.mended = False
        for fleet in self.fleets:
            for task in (ReadDocument, CaptionVideo):
                fleet.answers(task, self.plan)

    def plan(self, task: Any) -> Any:
        return PLANS[b"good" if self.mended else task.source]

    @rule(mended=st.booleans())
    def mend(self, mended: bool) -> None:
        self.mended = mended

    @rule(
        target=jobs,
        task=st.sampled_from([ReadDocument, CaptionVideo]),
        content=st.sampled_from(sorted(PLANS)),
        key=keys,
        lane=st.sampled_from(Lane),
        expires=times,
    )
    def submit(self, task: Any, content: bytes, key: str | None, lane: Lane, expires: Any) -> Pair:
        wanted = {
            "idempotency_key": key,
            "priority": lane,
            "expires": expires,
            "webhook": "https://example.org/",
        }
        fake, real = (_outcome(client.submit, task(content), **wanted) for client in self.clients)
        assert getattr(fake, "created", fake) == getattr(real, "created", real)
        return (None, None) if isinstance(fake, str) else (fake, real)

    @rule(job=jobs, how=st.sampled_from(["finish", "start", "step"]))
    def work(self, job: Pair, how: str) -> None:
        if job[0]:
            moved = [getattr(fleet, how)(one) for fleet, one in zip(self.fleets, job, strict=True)]
            assert moved[0] == moved[1]

    @rule(by=st.sampled_from([timedelta(hours=1), timedelta(hours=3)]))
    def wait(self, by: timedelta) -> None:
        for fleet in self.fleets:
            fleet.advance(by)

    @rule(job=jobs)
    def cancel(self, job: Pair) -> None:
        self._both(job, lambda _client, one: one.cancel(reason="why"))

    @rule(job=jobs)
    def retry(self, job: Pair) -> None:
        self._both(job, lambda _client, one: str(one.retry().state))

    @rule(job=jobs, as_completed=st.booleans())
    def read(self, job: Pair, as_completed: bool) -> None:
        self._both(job, lambda _client, one: one.result(timeout=0))
        if job[0] and job[0].kind == ReadDocument.kind:
            self._both(job, lambda _client, one: list(one.pages(timeout=0, as_completed=as_completed)))

    @rule()
    def look_around(self) -> None:
        fake, real = ([*map(_view, client.jobs())] for client in self.clients)
        assert fake == real

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            self.look_around()
            fake, real = ([one.notice.type for one in fleet.callbacks] for fleet in self.fleets)
            assert Counter(fake) == Counter(real)

    def _both(self, job: Pair, ask: Callable[[Any, Any], Any]) -> None:
        if job[0] is None:
            return
        fake, real = (_outcome(ask, client, one) for client, one in zip(self.clients, job, strict=True))
        assert fake == real
        fake, real = (_events(one) for one in job)
        assert fake == real


def _outcome(ask: Callable[..., Any], *about: Any, **wanted: Any) -> Any:
    try:
        return ask(*about, **wanted)
    except PeciaError as error:
        return type(error).__name__


def _view(job: Any) -> Any:
    over = job.finished_at is not None
    return (job.kind, job.state, job.lane, job.progress, job.failure, dict(job.metadata), over)


def _events(job: Any) -> Any:
    """Return what was told of the job in order, and of its parts, which may be ended in any order at once."""
    told = job._open().store.events(job.id, after=0, skip=())
    moves = Counter((event.state, event.attempt, event.reason) for event in told if event.part_id)
    return [(event.state, event.reason) for event in told if event.part_id is None], moves


@pytest.mark.gate
def test_both_tell_the_same_of_whatever_is_done(real_fleet: RealFleet) -> None:
    Twins.real = real_fleet
    run_state_machine_as_test(
        Twins,
        settings=settings(
            stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
        ),
    )


def told(job: Job[Any]) -> Any:
    """What can be seen of a job that is over, but for ids, times, names and text."""
    events = [
        (event.state, event.attempt, event.reason, event.part_id is None)
        for event in job.events(timeout=WAIT_S)
    ]
    pages = [page.number for page in job.pages(timeout=WAIT_S)] if job.state.has_result else []
    code = job.failure.code if job.failure else None
    return job.state, job.progress, code, pages, Counter(events), [event for event in events if event[3]]


@pytest.mark.usefixtures("shared_template")
def test_a_real_worker_and_a_fake_fleet_agree(client: Client, house: House, picture: Picture) -> None:
    document, scan, sheet = blank_pdf(3), picture(), b"name;dose"
    answers: dict[bytes, Any] = {document: ["1", "2", "3"], scan: "x", sheet: FailureCode.UNSUPPORTED_TYPE}
    tasks = [
        ReadDocument(document),
        ReadDocument(document, pages="1,3"),
        ReadDocument(document, pages="7"),
        ReadDocument(scan),
        ReadDocument(sheet),
    ]
    real = client.submit_many(tasks)
    house.work_off()
    with FakeFleet() as fleet:
        fleet.answers(ReadDocument, lambda task: answers[task.source])
        fake = fleet.client().submit_many(tasks)
        assert [told(job) for job in fake.wait(WAIT_S)] == [told(job) for job in real.wait(WAIT_S)]
