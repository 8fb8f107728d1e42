"""The engine that asks a Ray cluster: pages go through Ray Data's vLLM processor, on as many replicas as it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pecia_schemas import FailureCode, Stage
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import base
from pecia_workers.engines.fitting import DOUBTFUL, fitted
from pecia_workers.engines.in_flight import InFlight, is_loop
from pecia_workers.engines.models import vllm_revision
from pecia_workers.engines.ray.rows import ERROR
from pecia_workers.engines.reader_cards import card_of

if TYPE_CHECKING:
    from pecia_workers.engines.ray.prompts import Prompts
    from pecia_workers.engines.ray.stream import Stream

_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # or whatever touches Ray after the end starts it anew
    "RAY_task_events_report_interval_ms": "0",  # or Ray keeps a note of every row's tasks
    "RAY_raylet_start_wait_time_s": "120",
}
_REFUSAL: Final = "VLLMValidationError"


class RayEngine:
    """One row a request. Pages only: Ray's processor takes no clips that are in memory, and adapters its own way."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._in_flight = InFlight()
        self._opening: asyncio.Task[tuple[Stream, Prompts]] | None = None
        self._stream: Stream | None = None
        self._prompts: Prompts | None = None
        self._revision: str | None = None

    @property
    def capabilities(self) -> base.Capabilities:
        """Pages, in whatever language the model knows."""
        card = card_of(self._settings.model, self._settings.card)
        return base.Capabilities(
            name="ray",
            model=self._settings.model,
            stages=frozenset({Stage.READ}),
            fields=card.fields,
            instructions=card.instructions,
            revision=self._revision,
        )

    @property
    def budget(self) -> base.Budget:
        """What all replicas run at a time; each of them looks after its own memory."""
        return base.Budget(slots=self._stream.slots if self._stream else 1, tokens=None)

    async def start(self) -> None:
        """Start the replicas and wait until one has answered: minutes.

        Raises `EngineDeadError`, `EngineUnavailableError`. `stop` cleans up even after a start that failed.
        """
        self._opening = asyncio.create_task(asyncio.to_thread(_open, self._settings))
        try:
            stream, prompts = await asyncio.shield(self._opening)
            self._revision = await asyncio.to_thread(_revision, self._settings)
            self._stream, self._prompts = stream, prompts
            await self.generate(prompts.probe())
        except (base.EngineUnavailableError, base.EngineDeadError):
            raise
        except Exception as error:
            raise base.EngineDeadError(f"Ray did not start the model: {type(error).__name__}.") from error

    async def stop(self) -> None:
        """End every request and every process; callers get `asyncio.CancelledError`."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        await self._in_flight.end_all()
        await asyncio.wait([opening])
        self._stream = None
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result()[0].close)

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request, its pictures shrunk if they are more than the context by the checkpoint's processor.

        Raises `EngineRefusedError`.
        """
        prompts = self._prompts
        if prompts is None or request.prompt_tokens <= prompts.room.context * DOUBTFUL:
            return request
        return await fitted(request, prompts.room, prompts.prompt_tokens)

    def cost(self, request: base.EngineRequest) -> int:
        """Return the asking price: the budget counts slots alone."""
        return request.bounded(self._settings.max_output_tokens).estimated_cost

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        """Return the text. Raises `EngineRefusedError` for what can never fit."""
        if self._stream is None or self._prompts is None:
            raise base.EngineError("The engine has not started.")
        return await self._in_flight.run(request.id, self._generate(self._stream, self._prompts, request))

    async def _generate(self, stream: Stream, prompts: Prompts, asked: base.EngineRequest) -> base.Generation:
        request = await self.fit(asked)
        bounded = request.bounded(self._settings.max_output_tokens)
        answer = await stream.ask(await asyncio.to_thread(prompts.row, bounded))
        if answer[ERROR]:
            raise _error(answer[ERROR], request)
        generation = _generation(answer, prompts, request)
        return generation if request is asked else replace(generation, shrunk_to=request.size)

    async def abort(self, request_id: str) -> None:
        """Wait for one request no longer. Ray finishes its row; the answer is dropped."""
        self._in_flight.end(request_id)

    def load(self) -> base.Load:
        """Return what Ray has before it. Raises `EngineDeadError` once the stream has broken off."""
        if self._stream is None:
            return base.Load(running=0, waiting=0)
        self._stream.check()
        running = min(len(self._in_flight), self._stream.slots)
        return base.Load(running=running, waiting=len(self._in_flight) - running)


def _error(kind: str, request: base.EngineRequest) -> base.EngineError:
    if kind != _REFUSAL:
        return base.EngineError(f"The engine failed on this request: {kind}.")
    if request.schema is None:
        return base.EngineRefusedError("The picture is more than the engine takes.")
    return base.EngineRefusedError("The engine cannot write by this schema.", FailureCode.FIELDS_UNAVAILABLE)


def _generation(answer: dict[str, Any], prompts: Prompts, request: base.EngineRequest) -> base.Generation:
    tokens = answer["tokens"]
    usage = TokenUsage(
        prompt=answer["prompt"], image=max(0, answer["prompt"] - prompts.words(request)), output=len(tokens)
    )
    text: str = answer["text"]
    verdict = ending_of(tokens, prompts.ends) if text.strip() else Verdict.UNREADABLE
    return base.Generation(text=text, verdict=verdict, usage=usage)


def _open(settings: WorkerSettings) -> tuple[Stream, Prompts]:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from pecia_workers.engines.ray.prompts import Prompts  # noqa: PLC0415  imports vLLM, for seconds
    from pecia_workers.engines.ray.stream import Stream  # noqa: PLC0415  imports Ray, for seconds

    prompts = Prompts.of(settings)
    return Stream.open(settings), prompts


def _revision(settings: WorkerSettings) -> str | None:
    """Return that of vLLM and of the model; None for a name on the Hub: its weights may be elsewhere."""
    is_known = settings.cache_revision or Path(settings.model).is_dir()
    return vllm_revision(settings) if is_known else None


def ending_of(tokens: Sequence[int], ends: Collection[int]) -> Verdict:
    """Return the verdict of an answer: one that is whole ends with a token that `ends` a text; others were cut off.

    Told by its tokens, for Ray's processor does not hand on vLLM's own word for it.
    """
    if tokens and tokens[-1] in ends:
        return Verdict.OK
    return Verdict.REPETITION if is_loop(tokens) else Verdict.TRUNCATED
