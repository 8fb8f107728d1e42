"""One running vLLM engine. The only module of the fleet that imports vLLM: slow, and not without `pecia[vllm]`."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.renderers import ChatParams
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from pecia_schemas.results import TokenUsage, Verdict
from pecia_workers.engines.base import (
    Budget,
    EngineDeadError,
    EngineError,
    EngineRefusedError,
    Generation,
    Load,
)
from pecia_workers.engines.vllm_options import engine_arguments
from pecia_workers.engines.vllm_processes import deaf_to_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import EngineRequest

_CHAT: Final = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})

LOOPS: Final = {"min_pattern_size": 8, "max_pattern_size": 48, "min_count": 12}
"""When a text counts as a loop: so many equal patterns of so many tokens at its end.

A shorter pattern repeats within the shortest; an empty table of a dozen rows is not yet a loop.
"""

_DEAD: Final = "The engine's process has ended: see the worker's log."
_VERDICTS: Final = {"stop": Verdict.OK, "length": Verdict.TRUNCATED, "repetition": Verdict.REPETITION}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A request as the engine takes it: tokens and prepared pictures."""

    prompt: Any
    tokens: int
    """Length of the prompt, pictures included."""
    image_tokens: int


class VllmSession:
    """An engine that is loaded and ready; used on one loop."""

    def __init__(self, llm: Any, gauge: _Gauge) -> None:
        self._llm = llm
        self._gauge = gauge

    @classmethod
    def open(cls, settings: WorkerSettings) -> VllmSession:
        """Load the model; takes seconds to minutes. Raises `EngineUnavailableError` and whatever vLLM raises."""
        known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
        arguments = AsyncEngineArgs(**engine_arguments(settings, known))
        gauge = _Gauge()
        with deaf_to_ctrl_c():
            return cls(AsyncLLM.from_engine_args(arguments, stat_loggers=[gauge.logger]), gauge)

    @property
    def budget(self) -> Budget:
        """The engine's sequences, and its KV cache in tokens."""
        cache = self._llm.vllm_config.cache_config
        tokens = cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size
        return Budget(slots=self._llm.vllm_config.scheduler_config.max_num_seqs, tokens=tokens)

    @property
    def context(self) -> int:
        """Most tokens of one prompt and its answer."""
        length: int = self._llm.model_config.max_model_len
        return length

    @property
    def load(self) -> Load:
        """What the engine said after its last step. Raises `EngineDeadError`."""
        if self._llm.errored:
            raise EngineDeadError(_DEAD)
        return self._gauge.load

    async def render(self, request: EngineRequest) -> Rendered:
        """Return the request by the checkpoint's own chat template and processor. Raises `EngineError`."""
        pictures = [{"type": "image_pil", "image_pil": Image.fromarray(image)} for image in request.images]
        asked = {"role": "user", "content": [*pictures, {"type": "text", "text": request.instruction}]}
        with self._told_apart():
            _, (prompt,) = await self._llm.renderer.render_chat_async([[asked]], _CHAT)
        placed = prompt.get("mm_placeholders", {}).get("image", ())
        return Rendered(
            prompt=prompt,
            tokens=len(prompt["prompt_token_ids"]),
            image_tokens=sum(place.get_num_embeds() for place in placed),
        )

    async def generate(self, request_id: str, rendered: Rendered, most_tokens: int) -> Generation:
        """Return the text, greedy and of `most_tokens` at most. Cancelling the caller aborts it in the engine."""
        params = SamplingParams(
            temperature=0,
            max_tokens=most_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            repetition_detection=RepetitionDetectionParams(**LOOPS),
        )
        with self._told_apart():
            # To its end, for a generator that is left alone aborts its request once more.
            (output,) = [output async for output in self._llm.generate(rendered.prompt, params, request_id)]
            return _generation(rendered, output)

    def close(self) -> None:
        """End the engine's processes; takes seconds. Cancel every request before, or it hangs."""
        self._llm.shutdown()

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Raise our errors for theirs, whose texts may quote a request."""
        try:
            yield
        except (asyncio.CancelledError, EngineError):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
            if isinstance(error, CoreDeadError) or self._llm.errored:
                raise EngineDeadError(_DEAD) from None
            if isinstance(error, VLLMClientError):
                raise EngineRefusedError(
                    f"The picture is more than the engine takes: its context is {self.context} tokens,"
                    f" one picture {self._picture_limit} of them at most."
                ) from None
            cause = type(error.__cause__ or error).__name__
            raise EngineError(f"The engine failed on this request: {cause}.") from None

    @property
    def _picture_limit(self) -> int:
        limit: int = self._llm.vllm_config.scheduler_config.encoder_cache_size
        return limit


class _Gauge:
    """Keeps what the engine's scheduler says after each step."""

    def __init__(self) -> None:
        self.load = Load(running=0, waiting=0)

    def logger(self, *_config: Any) -> StatLoggerBase:
        """Return a logger for one engine core that writes here."""
        return _StepLogger(self)


class _StepLogger(StatLoggerBase):  # type: ignore[misc]
    def __init__(self, gauge: _Gauge) -> None:
        self._gauge = gauge

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self._gauge.load = Load(
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_used=scheduler_stats.kv_cache_usage,
            )

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _generation(rendered: Rendered, output: Any) -> Generation:
    (answer,) = output.outputs
    if answer.finish_reason not in _VERDICTS:
        raise EngineError(f"The engine ended the request early: {answer.finish_reason}.")
    usage = TokenUsage(
        prompt=rendered.tokens,
        image=rendered.image_tokens,
        cached=output.num_cached_tokens or 0,
        output=len(answer.token_ids),
    )
    return Generation(
        text=answer.text,
        verdict=_VERDICTS[answer.finish_reason] if answer.text.strip() else Verdict.UNREADABLE,
        usage=usage,
        first_token_s=output.metrics.first_token_latency if output.metrics else None,
    )
