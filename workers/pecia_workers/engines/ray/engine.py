"""The engine on a Ray cluster: pages go through Ray Data's vLLM processor, on all its replicas."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.engines.reader_cards import language_model
from pecia_workers.engines.requests import fitted_by_count, is_loop, probe
from pecia_workers.protocol import base

if TYPE_CHECKING:
    from pecia_workers.engines.ray.stream import Prompts, Stream

_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # or whatever touches Ray after the end starts it anew
    "RAY_task_events_report_interval_ms": "0",  # or Ray keeps a note of every row's tasks
    "RAY_raylet_start_wait_time_s": "120",
}
_PROBE: Final = (112, 112, 3)
_REFUSAL: Final = "VLLMValidationError"


class RayEngine(base.Engine):
    """One row for each request. Pages only: Ray's processor accepts neither clips in memory nor our adapters."""

    def __init__(self, settings: WorkerSettings) -> None:
        capabilities = language_model("ray", settings, settings.model)
        capabilities = replace(capabilities, stages=frozenset({Stage.READ}), adapters=frozenset())
        super().__init__(capabilities, base.Budget(slots=1, tokens=None), settings.max_output_tokens)
        self._settings = settings
        self._opening: asyncio.Task[tuple[Stream, Prompts]] | None = None
        self._stream: Stream | None = None
        self._prompts: Prompts | None = None

    async def start(self) -> None:
        """Start the replicas and wait until one has answered, which takes minutes."""
        self._opening = asyncio.create_task(asyncio.to_thread(_open, self._settings))
        try:
            stream, prompts = await asyncio.shield(self._opening)
            self.capabilities = replace(self.capabilities, revision=prompts.revision)
            # What all replicas run at a time; each of them looks after its own memory.
            self.budget = base.Budget(slots=stream.slots, tokens=None)
            self._stream, self._prompts = stream, prompts
            await self.generate(probe(np.zeros(_PROBE, dtype=np.uint8)))
        except (base.EngineUnavailableError, base.EngineDeadError):
            raise
        except Exception as error:
            raise base.EngineDeadError(f"Ray did not start the model: {type(error).__name__}.") from error

    async def stop(self) -> None:
        """End every request and every process; callers get `asyncio.CancelledError`."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        await self._end_all()
        await asyncio.wait([opening])
        self._stream = None
        if not opening.cancelled() and opening.exception() is None:
            await asyncio.to_thread(opening.result()[0].close)

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request, its pictures reduced if they exceed the context by the checkpoint's processor."""
        prompts = self._prompts
        if prompts is None:
            return request
        return await fitted_by_count(request, prompts.limits, prompts.prompt_tokens)

    async def _answer(self, request: base.EngineRequest) -> base.Generation:
        stream, prompts = self._stream, self._prompts
        if stream is None or prompts is None:
            raise base.EngineError("The engine has not started.")
        fitted = await self.fit(request)
        row = await asyncio.to_thread(prompts.row, fitted.bounded(self._most_output))
        answer = await stream.ask(row)
        if answer["error"] == _REFUSAL and request.schema is not None:
            refused = "The engine does not support this schema."
            raise base.EngineRefusedError(refused, FailureCode.FIELDS_UNAVAILABLE)
        if answer["error"] == _REFUSAL:
            raise base.EngineRefusedError("The picture is too large for the engine.")
        if answer["error"]:
            raise base.EngineError(f"The engine failed on this request: {answer['error']}.")
        prompt, tokens, text = answer["prompt"], answer["tokens"], answer["text"]
        image = max(0, prompt - prompts.words(fitted))
        return base.Generation(
            text=text,
            verdict=ending_of(tokens, prompts.ends) if text.strip() else Verdict.UNREADABLE,
            usage=TokenUsage(prompt=prompt, image=image, output=len(tokens)),
            shrunk_to=None if fitted is request else fitted.size,
        )

    def load(self) -> base.Load:
        """Return the load of Ray's stream. Raises `EngineDeadError` once the stream has ended."""
        if self._stream is None:
            return base.Load(running=0, waiting=0)
        self._stream.check()
        return self._load_of(self._stream.slots)


def _open(settings: WorkerSettings) -> tuple[Stream, Prompts]:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from pecia_workers.engines.ray.stream import Prompts, Stream  # noqa: PLC0415  imports vLLM and Ray, for seconds

    prompts = Prompts.of(settings)
    return Stream.open(settings), prompts


def ending_of(tokens: Sequence[int], ends: Collection[int]) -> Verdict:
    """Return the verdict of an answer: one that does not end with a token in `ends` was truncated.

    Judged by its tokens, since Ray's processor does not pass on vLLM's finish reason.
    """
    if tokens and tokens[-1] in ends:
        return Verdict.OK
    return Verdict.REPETITION if is_loop(tokens) else Verdict.TRUNCATED
