"""Requests that an engine makes ready and works on: whose turn it is, what fits, and when a text is a loop."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.ray.engine import ending_of
from pecia_workers.engines.requests import LOOPS, Preparation, Prepared, RequestLimits, Turns, is_loop
from pecia_workers.engines.simulated import SimulatedEngine
from pecia_workers.engines.vllm.engine import preparers
from pecia_workers.protocol.base import ClipTimes, EngineError, EngineRefusedError, EngineRequest, Generation
from tests.shared.limits import WAIT_S
from tests.shared.samples import engine_request


class Ringing(SimulatedEngine):
    """Answers when its bell rings."""

    def __init__(self) -> None:
        super().__init__()
        self.wakeup = asyncio.Event()

    async def _answer(self, request: EngineRequest) -> Generation:  # noqa: ARG002  all are answered alike
        await self.wakeup.wait()
        return Generation(text="", verdict=Verdict.OK)


async def test_an_id_that_is_in_flight_is_refused_and_the_first_goes_on() -> None:
    engine = Ringing()
    first = asyncio.create_task(engine.generate(engine_request("part")))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="in flight already"):
        await engine.generate(engine_request("part"))
    engine.wakeup.set()
    assert (await first).verdict is Verdict.OK


async def test_when_all_are_ended_nothing_is_left_that_runs() -> None:
    engine = Ringing()
    reading = [asyncio.create_task(engine.generate(engine_request(str(number)))) for number in range(3)]
    await asyncio.sleep(0)
    await engine._end_all()
    await asyncio.wait(reading)

    assert [one.cancelled() for one in reading] == [True, True, True]
    assert not engine._in_flight


async def _served(turns: Turns, served: list[str], rank: int, name: str) -> None:
    async with turns.turn(rank):
        served.append(name)
        await asyncio.sleep(0)


async def test_the_most_urgent_comes_next_and_equals_as_they_came() -> None:
    turns, served = Turns(), list[str]()
    comers = [(2, "first"), (2, "bulk 1"), (2, "bulk 2"), (0, "urgent"), (1, "normal")]
    await asyncio.gather(*(_served(turns, served, rank, name) for rank, name in comers))
    assert served == ["first", "urgent", "normal", "bulk 1", "bulk 2"]


async def test_one_that_gives_up_lets_the_next_come() -> None:
    """One while it waits, one in the moment in which its turn has come."""
    turns, served = Turns(), list[str]()
    async with turns.turn(0):
        waiting = [
            asyncio.create_task(_served(turns, served, rank, name))
            for rank, name in enumerate(("gives up when called", "gives up", "last"))
        ]
        await asyncio.sleep(0)
        waiting[1].cancel()
    waiting[0].cancel()
    await asyncio.wait_for(waiting[2], WAIT_S)
    await _served(turns, served, 0, "later")
    assert served == ["last", "later"]


PAGE_BYTES = 100
WORDS = 10
WIDE = RequestLimits(context=10_000, item=10_000)


@dataclass
class Prompt:
    """What a renderer makes of pictures that cost a token for each 28 x 28 pixels, `most` at most."""

    request: EngineRequest
    most: int
    size: int = PAGE_BYTES

    @property
    def _items(self) -> list[int]:
        pixels = [image.shape[0] * image.shape[1] for image in self.request.images]
        return [sum(pixels) // 784] if self.request.clip else [min(one // 784, self.most) for one in pixels]

    @property
    def image_tokens(self) -> int:
        return sum(self._items)

    @property
    def largest_item(self) -> int:
        return max(self._items, default=0)

    @property
    def tokens(self) -> int:
        return WORDS + self.image_tokens


class Desk:
    """A renderer that takes a turn of the loop for each page, and what it rendered."""

    def __init__(self, most_bytes: int = 10 * PAGE_BYTES, places: int = 1, most_tokens: int = 10**9) -> None:
        self.rendered: list[str] = []
        self.most_tokens = most_tokens
        self.preparation = Preparation(self._render, places, most_bytes)

    async def _render(self, request: EngineRequest) -> Any:
        self.rendered.append(request.id)
        await asyncio.sleep(0)
        return Prompt(request, self.most_tokens)

    async def prepared(self, request: EngineRequest, room: RequestLimits = WIDE) -> EngineRequest:
        return await self.preparation.prepare(request, room)


def page(name: str = "page", rank: int = 2, side: int = 280, **about: Any) -> EngineRequest:
    return engine_request(name, side, priority=rank, max_output_tokens=20, **about)


def prompt_of(request: EngineRequest) -> Prepared:
    return cast("Prepared", request.prepared)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_pages_that_are_ready_leave_no_more_than_their_budget_but_an_urgent_one_passes() -> None:
    desk = Desk(most_bytes=2 * PAGE_BYTES)
    bulk = [asyncio.create_task(desk.prepared(page(str(number)))) for number in range(4)]
    await settled()
    assert desk.rendered == ["0", "1"]

    urgent = await desk.prepared(page("urgent", 0))
    assert desk.rendered == ["0", "1", "urgent"]
    assert desk.preparation._ready.total() == 3 * PAGE_BYTES

    for ready in (urgent, bulk[0].result()):
        with prompt_of(ready):
            """As the batcher leaves one that is given up."""
    await settled()
    assert desk.rendered == ["0", "1", "urgent", "2"]
    assert prompt_of(bulk[1].result()).take()
    await settled()
    assert desk.rendered[-1] == "3"


async def test_a_page_that_is_admitted_waits_for_no_bytes() -> None:
    """The engine had no memory for it, and those that are ready wait for its room."""
    desk = Desk(most_bytes=PAGE_BYTES)
    ready = await desk.prepared(page("ready", 0))
    again = await desk.preparation.prepare(page("again", 2), WIDE, admitted=True)
    assert prompt_of(ready).take()
    assert prompt_of(again).take()
    assert desk.preparation._ready.total() == 0


async def test_one_that_gives_up_while_it_waits_or_is_rendered_leaves_its_place_and_prompts_are_taken_once() -> (
    None
):
    desk = Desk()
    comers = [("0", 2), ("1", 2), ("2", 2), ("urgent", 0)]
    tasks = [asyncio.create_task(desk.prepared(page(name, rank))) for name, rank in comers]
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    first, last = prompt_of(await tasks[3]), prompt_of(await tasks[2])
    assert first.tokens == WORDS + 100
    assert (first.take() is None, first.take() is None, last.take() is None) == (False, True, False)
    assert (desk.rendered, desk.preparation._ready.total()) == (["0", "urgent", "2"], 0)


@pytest.mark.parametrize(
    ("room", "side", "seen", "least", "most"),
    [
        (RequestLimits(context=200, item=10_000), 560, 10**9, 0.9 * 170, 170),
        (RequestLimits(context=10_000, item=90), 560, 10**9, 0.9 * 90, 90),
        (RequestLimits(context=1_000, item=1_000), 2_800, 1_000, 400, 1_000),
    ],
    ids=["context", "encoder", "a picture far larger than what the model sees of it"],
)
async def test_a_page_is_shrunk_to_what_the_engine_takes_and_not_far_below(
    room: RequestLimits, side: int, seen: int, least: float, most: int
) -> None:
    fitted = await Desk(most_tokens=seen).prepared(page(side=side), room)
    assert least < prompt_of(fitted).tokens - WORDS <= most


async def test_a_clip_loses_frames_and_keeps_its_first_and_last() -> None:
    frames = 40
    times = ClipTimes(fps=2.0, indices=tuple(range(frames)), duration=frames / 2)
    clip = page(images=(np.zeros((280, 280, 3), np.uint8),) * frames, clip=times)
    fitted = await Desk().prepared(clip, RequestLimits(context=1_000, item=10_000))
    assert fitted.clip
    assert 0.8 * 970 < prompt_of(fitted).tokens - WORDS <= 970
    assert (fitted.clip.indices[0], fitted.clip.indices[-1]) == (0, frames - 1)
    assert len(fitted.clip.indices) == len(fitted.images)


@pytest.mark.parametrize("context", [WORDS + 16, WORDS + 17], ids=["words alone", "a pixel or two"])
async def test_a_page_that_nothing_could_be_seen_of_is_refused_and_the_next_goes_on(context: int) -> None:
    desk = Desk()
    with pytest.raises(EngineRefusedError, match="beside the text"):
        await desk.prepared(page(), RequestLimits(context=context, item=10_000))
    assert prompt_of(await desk.prepared(page("next"))).take()
    assert desk.preparation._ready.total() == 0


def test_the_settings_say_how_many_there_are_or_else_the_cores() -> None:
    assert [preparers(WorkerSettings(preparers=count)) for count in (7, 0)] == [7, 0]
    assert 0 <= preparers(WorkerSettings()) <= 4


LEAST, MOST, COUNT = LOOPS["min_pattern_size"], LOOPS["max_pattern_size"], LOOPS["min_count"]
patterns = st.lists(st.text(max_size=3), min_size=LEAST, max_size=MOST)


@given(before=st.lists(st.text(max_size=3), max_size=30), pattern=patterns)
def test_a_pattern_often_enough_at_the_end_is_a_loop(before: list[str], pattern: list[str]) -> None:
    assert is_loop([*before, *pattern * COUNT])


def test_a_pattern_is_none_that_comes_less_often_is_longer_or_shorter_than_the_shortest() -> None:
    for size in (LEAST, MOST):
        pattern = [str(number) for number in range(size)]
        assert not is_loop(["before", *pattern * COUNT][2:])
        assert not is_loop([*pattern * COUNT, "after"])
    assert not is_loop(["|"] * (LEAST * COUNT - 1))
    assert is_loop(["|"] * (LEAST * COUNT))
    assert not is_loop([str(number) for number in range(MOST + 1)] * COUNT)


END = 2
LOOP = list(range(10, 18)) * 12


@given(st.lists(st.integers(3, 999), max_size=40))
def test_an_answer_of_which_the_tokens_alone_are_told_was_whole_cut_off_or_a_loop(answer: list[int]) -> None:
    assert ending_of([*answer, END], {END}) is Verdict.OK
    assert ending_of(answer, {END}) is Verdict.TRUNCATED
    assert ending_of([*answer, *LOOP], {END}) is Verdict.REPETITION
    assert ending_of([*answer, *LOOP, END], {END}) is Verdict.OK
