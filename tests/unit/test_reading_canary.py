"""Canary pages: when an answer is right, how soon a fault is found, and what is kept back until one was read right."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import combinations
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import EngineDistrustedError, EngineError, EngineRequest, Generation
from pecia_workers.reading import canary
from pecia_workers.reading.canary import Canaries, distance, drawn_code, is_read_right
from tests.shared.canary_reader import page_text, read_canary
from tests.shared.limits import WAIT_S, until
from tests.shared.scripted_engine import Answer, ScriptedEngine

PAGE = EngineRequest(
    id="page",
    images=(np.zeros((400, 800, 3), dtype=np.uint8),),
    workload=DocumentType.MIXED,
    priority=2,
    tenant="ward",
)
TEXT = "Amoxicillin 500 mg three times a day"
CODES = st.text(canary._SIGNS, min_size=canary._LENGTH, max_size=canary._LENGTH)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["change", "add", "leave out"]), st.integers(0, 99), st.characters(codec="ascii")
    ),
    max_size=canary._MISREAD,
)


def edited(line: str, edits: list[tuple[str, int, str]]) -> str:
    signs = list(line)
    for how, number, sign in edits:
        place = number % len(signs)
        signs[place : place + (how != "add")] = [] if how == "leave out" else [sign]
    return "".join(signs)


@given(CODES, EDITS, st.text(max_size=80), st.text(max_size=80))
def test_an_answer_is_right_if_the_code_is_nearly_right_in_one_place(
    code: str, edits: list[tuple[str, int, str]], before: str, after: str
) -> None:
    assert is_read_right(f"{before}\n{edited(code, edits)}\n{after}", code)


def test_no_misreading_turns_a_code_into_another() -> None:
    codes: list[str] = []
    for _ in range(canary._REMEMBERED):
        codes.append(drawn_code(codes))
    assert min(distance(later, former) for former, later in combinations(codes, 2)) > 2 * canary._MISREAD


def test_an_answer_with_another_canary_s_code_is_wrong_whatever_else_it_holds() -> None:
    own = drawn_code()
    other = drawn_code([own])
    assert is_read_right(page_text(own), own, [other])
    assert not is_read_right(page_text(other), own, [other])
    assert not is_read_right(page_text(own) + page_text(other), own, [other])
    assert not is_read_right(TEXT, own, [other])


def test_no_false_alarm_in_a_million_answers_with_four_wrong_characters_in_a_hundred() -> None:
    """A code with no more wrong characters than are forgiven is right; an alarm needs more in each of its places."""
    places = sum("{}" in line for line in canary._LINES)
    wrong = np.random.default_rng(1).binomial(canary._LENGTH, 0.04, (1_000_000, places))
    assert int((wrong > canary._MISREAD).all(axis=1).sum()) == 0
    # In one place.
    assert math.comb(canary._LENGTH, canary._MISREAD + 1) * 0.04 ** (canary._MISREAD + 1) < 5e-5


@pytest.mark.parametrize("every", [5, 20])
def test_a_neighbours_text_in_one_of_5000_answers_is_found_by_as_many_canaries_as_documented(
    every: int,
) -> None:
    """Each fleet reads `every` pages for a canary, until one of the two has the other's text."""
    share, runs, dice = 1 / 5_000, 200, np.random.default_rng(every)
    enough = math.ceil(math.log(100) / (2 * share))
    own, other = drawn_code(), drawn_code()
    canary_missed = not is_read_right(TEXT, own, [other])
    page_leaked = own in canary.letters(page_text(own))
    assert canary_missed
    assert page_leaked
    answers = (every + 1) * enough
    found = 0
    for _ in range(runs):
        swapped = np.flatnonzero(dice.random(answers) < share) % (every + 1)
        found += bool((swapped <= 1).any())  # the canary's own answer, or that of the page behind it
    assert found >= 0.97 * runs


def reads(request: EngineRequest) -> Generation:
    """Answer as an engine that reads well."""
    return Generation(text=read_canary(request.images[0]) or TEXT, verdict=Verdict.OK)


def canaries_on(
    answer: Callable[[EngineRequest], Answer | None], every: int = 2
) -> tuple[Canaries, ScriptedEngine]:
    engine = ScriptedEngine(answer)
    return Canaries(engine, 8, WorkerSettings(canary_every=every)), engine


def sent(engine: ScriptedEngine) -> list[EngineRequest]:
    """The canaries among what it was asked."""
    return [request for request in engine.asked if request.workload == "canary"]


async def within(wait: Awaitable[object]) -> None:
    await asyncio.wait_for(wait, WAIT_S)


async def test_a_canary_is_read_for_so_many_pages_in_the_lane_and_for_the_tenant_of_the_latest() -> None:
    canaries, engine = canaries_on(reads, every=3)
    answers = asyncio.Event()

    async def page() -> None:
        await canaries.generate(PAGE)
        await answers.wait()
        await canaries.vouch(uuid4())

    pages = [asyncio.create_task(page()) for _ in range(6)]
    await asyncio.sleep(0)
    canaries._inside += 1  # the engine is never idle
    answers.set()
    await within(asyncio.gather(*pages))
    assert [(one.priority, one.tenant, one.part) for one in sent(engine)] == [(2, "ward", None)] * 2
    assert canaries.spare == 3 + 2


async def test_a_page_waits_for_no_other_if_the_engine_has_none() -> None:
    canaries, engine = canaries_on(reads, every=100)
    await canaries.generate(PAGE)
    freed: list[UUID] = []
    canaries._freed = freed.append
    await within(canaries.vouch(part := uuid4()))
    assert len(sent(engine)) == 1
    assert freed == [part]


async def test_a_page_is_kept_back_until_a_canary_was_read_that_was_sent_after_it() -> None:
    hold = asyncio.Event()

    class Slow(ScriptedEngine):
        async def generate(self, request: EngineRequest) -> Generation:
            generation = await super().generate(request)
            if request.workload == "canary":
                await hold.wait()
            return generation

    engine = Slow(reads)
    canaries = Canaries(engine, 8, WorkerSettings(canary_every=1))
    first = asyncio.create_task(canaries.vouch(uuid4()))
    await until(lambda: sent(engine))
    second = asyncio.create_task(canaries.vouch(uuid4()))
    await until(lambda: len(sent(engine)) == 2)
    assert not first.done()
    assert not second.done()
    hold.set()
    await within(asyncio.gather(first, second))


@pytest.mark.parametrize("wrong", ["constant", "another canary's", "none"])
async def test_after_a_wrong_answer_nothing_is_trusted_any_more(wrong: str) -> None:
    former: list[str] = []

    def answer(request: EngineRequest) -> Answer:
        generation = reads(request)
        if request.workload == "canary":
            former.append(generation.text)
            if len(former) > 1:
                if wrong == "none":
                    return EngineError("no")
                text = TEXT if wrong == "constant" else former[0]
                return replace(generation, text=text)
        return generation

    canaries, engine = canaries_on(answer)
    await within(canaries.prove())
    await canaries.generate(PAGE)
    with pytest.raises(EngineDistrustedError):
        await within(canaries.vouch(uuid4()))
    asked = len(engine.asked)
    with pytest.raises(EngineDistrustedError):
        await canaries.generate(PAGE)
    with pytest.raises(EngineDistrustedError):
        await canaries.vouch(uuid4())
    assert len(engine.asked) == asked


async def test_a_canarys_code_in_a_pages_answer_is_a_fault_of_the_engine_and_no_page_can_know_one() -> None:
    known = page_text(drawn_code())
    texts = [known]

    def answer(request: EngineRequest) -> Answer:
        generation = reads(request)
        if request.workload == "canary":
            texts.append(generation.text)
            return generation
        return replace(generation, text=texts.pop(0))

    canaries, _ = canaries_on(answer)
    await within(canaries.prove())
    assert (await canaries.generate(PAGE)).text == known
    with pytest.raises(EngineDistrustedError):
        await canaries.generate(PAGE)


async def test_a_canary_without_an_answer_is_followed_by_another() -> None:
    answers: list[Answer] = [EngineError("no"), EngineError("no")]
    canaries, engine = canaries_on(lambda request: answers.pop() if answers else reads(request))
    await within(canaries.prove())
    assert len({one.id for one in sent(engine)}) == 3


async def test_pages_that_are_cancelled_leave_nothing_behind() -> None:
    canaries, _ = canaries_on(lambda _: None)
    waiting = asyncio.create_task(canaries.vouch(uuid4()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await within(canaries.stop())
    assert not canaries._reading
