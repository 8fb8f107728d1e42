"""The retry ladder: verdicts of readings, and repetitions of bad ones, with any engine."""

import asyncio
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import structlog

from pecia_schemas.blocks import Doubt, DoubtReason, Source, mean_confidence
from pecia_schemas.results import Change, ReadingAttempt, Verdict
from pecia_workers.engines.requests import resized
from pecia_workers.layout.lines import is_value
from pecia_workers.protocol.base import EngineDeadError, EngineError, EngineRequest, Generation, Generator

_DOUBTFUL_LINES: Final = 0.6
"""Mean confidence of lines below which a page is doubtful."""
_DOUBTFUL_WORDS: Final = 0.01
"""Expected share of wrong words, by the probabilities of doubts, from which a page is doubtful."""
_DOUBTFUL_MARKS: Final = 0.2
"""Share of words that the model marked as unreadable, as instructed, from which a page is doubtful."""
_DOUBTFUL_CHARACTERS: Final = 0.01
"""Share of replacement characters from which a page is doubtful: print has none."""
_UNREAD: Final = "[?]"
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_UNSURE: Final = 0.75
"""Mean token probability below which a page is doubtful: models are unsure where they invent text."""
_LEAST_LIKELY: Final = math.log(0.6)
"""Log-probability of its least likely token below which a word is doubtful."""
_WORD: Final = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
"""A word; in Chinese and Japanese, which have no spaces, each character."""
_MARKUP: Final = "|*#`_<>"
_FENCES: Final = ("```markdown", "```md", "```json")


def judged(generation: Generation) -> Generation:
    """Return the reading without a Markdown fence around it, with its final verdict.

    An engine's own negative verdict is kept; only `ok` is checked further.
    """
    text = generation.text if generation.blocks else unfenced(generation.text)
    doubts = (*generation.doubts, *doubtful_words(generation.tokens, text))
    if generation.lines:
        confidence = mean_confidence(generation.lines)
        is_exact = any(block.source in (Source.LAYER, Source.BOTH) for block in generation.blocks)
        is_doubtful = confidence is not None and confidence < _DOUBTFUL_LINES and not is_exact
    else:
        marked = text.count(_UNREAD) / (len(text.split()) or 1)
        broken = text.count(_BROKEN) / (len(text) or 1)
        is_doubtful = marked >= _DOUBTFUL_MARKS or broken >= _DOUBTFUL_CHARACTERS
    sure = sureness(generation.tokens)
    is_doubtful = is_doubtful or (sure is not None and sure < _UNSURE)
    reasons = [doubt.reason for doubt in doubts]
    words = sum(len(line.words) for line in generation.lines) or len(_WORD.findall(text))
    unsure = (doubt for doubt in doubts if doubt.reason is DoubtReason.LOW_CONFIDENCE)
    expected = sum(1.0 if doubt.probability is None else doubt.probability for doubt in unsure)
    has_unsure_words = expected and expected >= _DOUBTFUL_WORDS * words
    verdict = generation.verdict
    if text and not any(map(str.isalnum, text)):
        verdict = Verdict.UNREADABLE
    elif verdict is Verdict.OK:
        if DoubtReason.UNCOVERED in reasons:
            verdict = Verdict.INCOMPLETE
        elif is_doubtful:
            verdict = Verdict.LOW_CONFIDENCE
        elif has_unsure_words or DoubtReason.STRUCK_OUT in reasons or any(doubt.on_value for doubt in doubts):
            verdict = Verdict.REVIEW
    return replace(generation, text=text, doubts=doubts, verdict=verdict)


def unfenced(text: str) -> str:
    """Return an answer without the labelled fence around it, if there is one."""
    first, *lines = text.strip().split("\n")
    if first.strip().lower() not in _FENCES:
        return text
    if lines and lines[-1].strip() == "```":
        lines.pop()
    return "\n".join(lines)


def sureness(tokens: Sequence[tuple[str, float]]) -> float | None:
    """Return the geometric mean of the tokens' probabilities, 0 to 1; None without tokens."""
    return min(1.0, math.exp(sum(logged for _, logged in tokens) / len(tokens))) if tokens else None


def doubtful_words(tokens: Sequence[tuple[str, float]], written: str) -> tuple[Doubt, ...]:
    """Return the words of which the model was unsure, in order, without places.

    Skips special tokens, and characters that a tokenizer split into several tokens, since the answer lacks them.
    """
    found: list[Doubt] = []
    before = ""
    for word, least in _words(tokens):
        text = word[1].strip(_MARKUP)
        if least < _LEAST_LIKELY and any(map(str.isalnum, text)) and text in written:
            on_value = is_value(text, before)
            found.append(Doubt(reason=DoubtReason.LOW_CONFIDENCE, text=text, on_value=on_value))
        before = "" if "\n" in word[0] else f"{before}{text} "
    return tuple(found)


def words_below(tokens: Sequence[tuple[str, float]], probability: float) -> frozenset[str] | None:
    """Return the words that have a token less likely than this; None without tokens."""
    least_likely = math.log(probability)
    return frozenset(word[1] for word, least in _words(tokens) if least < least_likely) if tokens else None


def _words(tokens: Sequence[tuple[str, float]]) -> Iterator[tuple[re.Match[str], float]]:
    """Yield each word, with the spaces behind it, and the log-probability of its least likely token."""
    shown = [(text, logged) for text, logged in tokens if text]
    ends = [*accumulate(len(text) for text, _ in shown)]
    for word in re.finditer(r"(\S+)\s*", "".join(text for text, _ in shown)):
        first, last = bisect_right(ends, word.start()), bisect_left(ends, word.end(1))
        yield word, min(logged for _, logged in shown[first : last + 1])


_RUNGS: Final = {
    Verdict.REPETITION: (Change.TEMPERATURE, Change.PENALTY, Change.SMALLER),
    Verdict.TRUNCATED: (Change.SMALLER, Change.PENALTY, Change.TEMPERATURE),
    Verdict.UNREADABLE: (Change.TEMPERATURE, Change.SMALLER),
}
"""A changed sampling ends a loop. A smaller picture leaves more context for a truncated text. A repetition penalty has
no effect on a text without repetitions."""

_HOTTER: Final = 0.4
_STRICTER: Final = 0.1
_MOST: Final = 2.0
"""Most readings of either engine, as in a task's options."""
_SHRINK: Final = 0.75
"""Scale of each side."""
_STOPPING_S: Final = 1.0
"""Seconds after the deadline in which the engine stops a running reading; a waiting one is dropped."""
_LEAST_SIDE: Final = 112
"""Least side in pixels, four tokens in most families: below it nothing is legible."""


def _rungs(request: EngineRequest, generation: Generation) -> tuple[Change, ...]:
    """Return the changes to try, in order; none if the answer is good, or ends at a limit of the task's own."""
    most, verdict = request.max_output_tokens, generation.verdict
    if verdict is Verdict.TRUNCATED and most is not None and generation.usage.output >= most:
        return ()
    return _RUNGS.get(verdict, ())


def changed(request: EngineRequest, change: Change, seen: tuple[int, int]) -> EngineRequest | None:
    """Return the request with that change under a new id, or None if it cannot be changed further.

    `seen`: width and height at which the engine saw the picture. The change `smaller` takes up to a second.
    """
    again, sampling = replace(request, id=f"{request.id}:{change}"), request.sampling
    match change:
        case Change.TEMPERATURE:
            sampling = replace(sampling, temperature=min(_MOST, sampling.temperature + _HOTTER))
        case Change.PENALTY:
            penalty = min(_MOST, sampling.repetition_penalty + _STRICTER)
            sampling = replace(sampling, repetition_penalty=penalty)
        case Change.SMALLER:
            size = (round(seen[0] * _SHRINK), round(seen[1] * _SHRINK))
            if min(size) < _LEAST_SIDE:
                return None
            return replace(again, images=tuple(resized(image, size) for image in request.images))
        case Change.FALLBACK:
            return again
    return replace(again, sampling=sampling) if sampling != request.sampling else None


log = structlog.get_logger(__name__)

Judge = Callable[[Generation], Generation]
"""Returns an answer with its final verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer to a request, judged."""

    engine: str
    change: Change | None
    """Difference from the first reading."""
    generation: Generation
    seen: tuple[int, int]
    """Width and height, in pixels, at which the engine saw the picture."""

    def attempt(self, *, fields: bool = False) -> ReadingAttempt:
        """Return the record of a discarded reading."""
        verdict, usage = self.generation.verdict, self.generation.usage
        return ReadingAttempt(
            engine=self.engine, verdict=verdict, change=self.change, fields=fields, usage=usage
        )


def best(readings: Iterable[Reading]) -> Reading:
    """Return the reading with the best verdict, then the most text, then the earliest.

    A stopped reading has no text, whatever its verdict.
    """

    def rank(reading: Reading) -> tuple[bool, int, int]:
        answer = reading.generation
        return not answer.stopped, answer.verdict.rank, len(answer.text.strip())

    return max(readings, key=rank)


class Ladder:
    """Repeats a reading on the engine, each time with one change, and finally on the fallback engine."""

    def __init__(self, engine: Generator, fallback: Generator | None = None, *, most: int) -> None:
        """`most`: readings by `engine`, including the first."""
        self._engine = engine
        self._fallback = fallback
        self._most = most

    async def climb(self, request: EngineRequest, deadline: float, *, judge: Judge = judged) -> list[Reading]:
        """Return the readings in order, at least one; none starts after `deadline`, by the loop's clock.

        A reading in progress at the deadline is stopped and included. Raises `EngineError` only if the first reading
        fails, but `EngineDeadError` for any.
        """
        readings = [await self._read(self._engine, request, judge)]
        request, clock = replace(request, until=deadline), asyncio.get_running_loop().time

        def has_time() -> bool:
            return clock() < deadline and not readings[-1].generation.stopped

        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline + _STOPPING_S):
                tried: set[Change] = set()
                while len(readings) < self._most and self._engine.capabilities.samples and has_time():
                    rungs = _rungs(request, readings[-1].generation)
                    change = next((one for one in rungs if one not in tried), None)
                    if change is None:
                        break
                    tried.add(change)
                    again = await asyncio.to_thread(changed, request, change, readings[0].seen)
                    if again:
                        await self._try(self._engine, again, change, judge, readings)
                again = changed(request, Change.FALLBACK, readings[0].seen)
                if again and self._fallback and has_time() and _rungs(request, best(readings).generation):
                    # It would make up words of a script that it does not know.
                    known = self._fallback.capabilities.languages
                    if known is None or request.language in known:
                        await self._try(self._fallback, again, Change.FALLBACK, judge, readings)
        return readings

    async def _try(
        self, engine: Generator, request: EngineRequest, change: Change, judge: Judge, readings: list[Reading]
    ) -> None:
        """Add one more reading. An error is ignored, since earlier readings exist, unless the engine is dead."""
        log.info("read_again", request=request.id, verdict=readings[-1].generation.verdict)
        try:
            readings.append(await self._read(engine, request, judge, change))
        except EngineDeadError:
            raise
        except EngineError as error:
            log.warning("not_read_again", request=request.id, error=type(error).__name__)

    async def _read(
        self, engine: Generator, request: EngineRequest, judge: Judge, change: Change | None = None
    ) -> Reading:
        generation = await engine.generate(request)
        seen = engine.capabilities.seen(generation.shrunk_to or request.size)
        name = generation.engine or engine.capabilities.name
        judged = judge(replace(generation, shrunk_to=seen))
        return Reading(engine=name, change=change, generation=judged, seen=seen)
