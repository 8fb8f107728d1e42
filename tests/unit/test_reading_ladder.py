"""Reading again what was no good the first time."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.results import Change, TokenUsage, Verdict
from pecia_schemas.states import Stage
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import (
    Budget,
    Capabilities,
    Engine,
    EngineDeadError,
    EngineError,
    EngineRequest,
    Generation,
    Load,
    Sampling,
)
from pecia_workers.reading.ladder import Ladder, Reading, best
from pecia_workers.reading.page import spent
from tests.shared.scripted_engine import Answer, ScriptedEngine

PAGE = EngineRequest(
    id="part:1", images=(np.zeros((400, 800, 3), dtype=np.uint8),), workload=DocumentType.MIXED, language="en"
)
PATIENCE_S = 60.0
CPU = Capabilities(
    name="cpu", model="none", stages=frozenset({Stage.READ}), languages=frozenset({"en"}), samples=False
)
VERDICTS = st.sampled_from([verdict for verdict in Verdict if verdict is not Verdict.BLANK])


def said(verdict: Verdict, text: str = "some text", tokens: int = 10) -> Generation:
    return Generation(text=text, verdict=verdict, usage=TokenUsage(prompt=100, image=80, output=tokens))


def in_turn(answers: Sequence[Answer | None]) -> Callable[[EngineRequest], Answer | None]:
    """Answer in this order; the last one for ever."""
    left: Iterator[Answer | None] = iter(answers)
    return lambda _: next(left, answers[-1])


def climb(
    engine: ScriptedEngine,
    request: EngineRequest = PAGE,
    *,
    most: int = 4,
    fallback: ScriptedEngine | None = None,
    timeout_s: float = PATIENCE_S,
) -> list[Reading]:
    async def story() -> list[Reading]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        return await Ladder(engine, fallback, most=most).climb(request, deadline)

    return asyncio.run(story())


def changes(readings: list[Reading]) -> list[Change | None]:
    return [reading.change for reading in readings]


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.REVIEW, Verdict.LOW_CONFIDENCE, Verdict.INCOMPLETE])
def test_a_page_that_another_try_would_not_better_is_read_once(verdict: Verdict) -> None:
    fallback = ScriptedEngine(in_turn([said(Verdict.OK)]), CPU)
    assert changes(climb(ScriptedEngine(in_turn([said(verdict)])), fallback=fallback)) == [None]


def test_a_loop_is_read_again_with_one_thing_changed_at_a_time() -> None:
    engine = ScriptedEngine(in_turn([said(Verdict.REPETITION)]))
    assert changes(climb(engine)) == [None, Change.TEMPERATURE, Change.PENALTY, Change.SMALLER]
    first, hotter, stricter, smaller = engine.asked
    assert hotter == replace(first, id="part:1:temperature", sampling=Sampling(temperature=0.4))
    assert stricter == replace(first, id="part:1:penalty", sampling=Sampling(repetition_penalty=1.1))
    assert smaller == replace(first, id="part:1:smaller", images=smaller.images)
    assert smaller.images[0].shape == (300, 600, 3)


@pytest.mark.parametrize(
    ("answers", "tried"),
    [
        ([said(Verdict.TRUNCATED), said(Verdict.OK)], [Change.SMALLER]),
        (
            [said(Verdict.UNREADABLE, ""), said(Verdict.REPETITION)],
            [Change.TEMPERATURE, Change.PENALTY, Change.SMALLER],
        ),
        ([said(Verdict.REPETITION), EngineError("no"), said(Verdict.OK)], [Change.PENALTY]),
    ],
    ids=["a text that was cut off gets more room first", "a loop after nothing", "an error loses nothing"],
)
def test_the_last_answer_decides_what_is_tried_next(answers: list[Answer], tried: list[Change]) -> None:
    assert changes(climb(ScriptedEngine(in_turn(answers)))) == [None, *tried]


def test_a_page_that_the_engine_shrank_is_shrunk_further() -> None:
    shrunk = replace(said(Verdict.TRUNCATED), shrunk_to=(400, 200))
    readings = climb(ScriptedEngine(in_turn([shrunk, said(Verdict.OK)])))
    assert [reading.seen for reading in readings] == [(400, 200), (300, 150)]


def test_a_page_is_never_shrunk_beyond_legibility() -> None:
    stamp = replace(PAGE, images=(np.zeros((120, 120, 3), dtype=np.uint8),))
    engine = ScriptedEngine(in_turn([said(Verdict.TRUNCATED)]))
    assert changes(climb(engine, stamp)) == [None, Change.PENALTY, Change.TEMPERATURE]


def test_a_text_that_ends_where_its_task_says_is_left_alone() -> None:
    engine = ScriptedEngine(in_turn([said(Verdict.TRUNCATED, tokens=10)]))
    fallback = ScriptedEngine(in_turn([said(Verdict.OK)]), CPU)
    assert changes(climb(engine, replace(PAGE, max_output_tokens=10), fallback=fallback)) == [None]


def test_an_engine_that_always_says_the_same_is_not_asked_twice() -> None:
    assert changes(climb(ScriptedEngine(in_turn([said(Verdict.UNREADABLE, "")]), CPU))) == [None]


def test_the_other_engine_comes_last() -> None:
    engine = ScriptedEngine(in_turn([said(Verdict.REPETITION)]))
    fallback = ScriptedEngine(in_turn([said(Verdict.OK)]), CPU)

    readings = climb(engine, most=2, fallback=fallback)

    assert [(one.engine, one.change) for one in readings] == [
        ("scripted", None),
        ("scripted", Change.TEMPERATURE),
        ("cpu", Change.FALLBACK),
    ]
    assert fallback.asked[0].images is PAGE.images


@pytest.mark.parametrize(
    ("second", "language"), [(Verdict.OK, "en"), (Verdict.REPETITION, "ko"), (Verdict.REPETITION, None)]
)
def test_the_other_engine_is_left_alone_once_a_reading_was_good_and_with_what_it_may_not_know(
    second: Verdict, language: str | None
) -> None:
    engine = ScriptedEngine(in_turn([said(Verdict.REPETITION), said(second)]))
    fallback = ScriptedEngine(in_turn([said(Verdict.OK)]), CPU)
    climb(engine, replace(PAGE, language=language), fallback=fallback)
    assert not fallback.asked


@pytest.mark.parametrize("error", [EngineError("no"), EngineDeadError("gone")])
def test_an_error_on_the_first_reading_is_the_pages(error: EngineError) -> None:
    with pytest.raises(type(error)):
        climb(ScriptedEngine(in_turn([error])))


def test_an_engine_that_dies_on_the_way_is_told() -> None:
    with pytest.raises(EngineDeadError):
        climb(ScriptedEngine(in_turn([said(Verdict.REPETITION), EngineDeadError("gone")])))


def test_a_reading_that_takes_too_long_is_given_up_for_those_that_are_there() -> None:
    engine = ScriptedEngine(in_turn([said(Verdict.REPETITION), None]))
    assert changes(climb(engine, timeout_s=0.5)) == [None]


@given(
    answers=st.lists(st.tuples(VERDICTS, st.text(max_size=9), st.integers(0, 99)), min_size=1, max_size=9),
    most=st.integers(1, 6),
    falls_back=st.booleans(),
)
def test_the_ladder_ends_and_its_best_reading_wins(
    answers: list[tuple[Verdict, str, int]], most: int, *, falls_back: bool
) -> None:
    engine = ScriptedEngine(in_turn([said(*answer) for answer in answers]))
    fallback = ScriptedEngine(in_turn([said(*answers[-1])]), CPU) if falls_back else None

    readings = climb(engine, most=most, fallback=fallback)

    winner = best(readings)
    losers = [reading for reading in readings if reading is not winner]
    usage = spent([winner], losers)
    assert len(readings) <= most + falls_back
    assert len(set(changes(readings))) == len(readings)
    for other in losers:
        assert other.generation.verdict.rank <= winner.generation.verdict.rank
    assert usage.wasted == sum(100 + one.generation.usage.output for one in losers)
    assert usage.prompt == 100 * len(readings)
    assert usage.output == usage.wasted - 100 * len(losers) + winner.generation.usage.output


class SlowAgain(Engine):
    """Loops at once, and at every further reading writes until it is stopped."""

    def __init__(self) -> None:
        capabilities = Capabilities(name="slow", model="none", stages=frozenset({Stage.READ}))
        super().__init__(capabilities, Budget(slots=1, tokens=None))
        self.stopped: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def _answer(self, request: EngineRequest) -> Generation:
        if request.id == PAGE.id:
            return said(Verdict.REPETITION)
        try:
            await asyncio.Event().wait()
            raise EngineError("It went on.")
        finally:
            self.stopped.append(request.id)

    def load(self) -> Load:
        return Load(running=1, waiting=0, written=dict.fromkeys(self._in_flight, 7))


async def test_a_reading_that_is_stopped_is_an_attempt_with_what_it_took_and_never_the_page() -> None:
    engine = SlowAgain()
    deadline = asyncio.get_running_loop().time() + 0.05
    readings = await Ladder(engine, most=4).climb(PAGE, deadline)
    assert changes(readings) == [None, Change.TEMPERATURE]
    assert engine.stopped == ["part:1:temperature"]
    assert best(readings) is readings[0], "though its verdict is the worse one"
    (attempt,) = [reading.attempt() for reading in readings[1:]]
    assert (attempt.verdict, attempt.usage.output) == (Verdict.TRUNCATED, 7)
    assert attempt.usage.prompt == PAGE.prompt_tokens
    assert spent(readings[:1], readings[1:]).wasted == attempt.usage.prompt + 7


@pytest.mark.parametrize(
    ("limits", "seen"),
    [({}, (800, 400)), ({"most_pixels": 80_000}, (400, 200)), ({"longest_side": 400}, (400, 200))],
    ids=["no limit", "pixels", "side"],
)
def test_smaller_is_smaller_than_what_the_models_processor_leaves_of_a_page(
    limits: dict[str, int], seen: tuple[int, int]
) -> None:
    capabilities = Capabilities(name="small", model="none", stages=frozenset({Stage.READ}), **limits)  # type: ignore[arg-type]
    engine = ScriptedEngine(in_turn([said(Verdict.TRUNCATED)]), capabilities)
    first, smaller, *_ = climb(engine)
    assert first.seen == seen
    assert (smaller.change, engine.asked[1].size) == (
        Change.SMALLER,
        (round(0.75 * seen[0]), round(0.75 * seen[1])),
    )
