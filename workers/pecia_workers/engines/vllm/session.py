"""One running vLLM engine. Imports vLLM: slow, and not without `pecia[vllm]`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psutil
import structlog
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import layers_of
from pecia_workers.engines.requests import LOOPS, RequestLimits, check_adapter, verdict_of
from pecia_workers.engines.vllm.processes import deaf_to_ctrl_c, engine_arguments
from pecia_workers.engines.vllm.rendering import Rendered, Renderer, name_of
from pecia_workers.media.pages import MediaError
from pecia_workers.protocol import base

log = structlog.get_logger(__name__)

_GRAMMAR: Final = "Grammar error"
_DEAD: Final = "The engine's process has ended: see the worker's log."
_NO_MEMORY: Final = ("OutOfMemoryError", "MemoryError")


class VllmSession:
    """An engine that is loaded and ready; used on one loop."""

    def __init__(self, llm: Any, gauge: _Gauge, settings: WorkerSettings) -> None:
        self._llm = llm
        self._gauge = gauge
        self._settings = settings
        self._adapters = {
            name: LoRARequest(name, number, directory)
            for number, (name, directory) in enumerate(settings.adapters.items(), start=1)
        }
        self._renderer = Renderer(llm.renderer, takes_clips=self.takes_clips)
        self._rendering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
        """One thread, also beside a request that was given up and is still being rendered."""

    @classmethod
    def open(cls, settings: WorkerSettings) -> VllmSession:
        """Load the model; takes seconds to minutes. Raises `EngineUnavailableError` and whatever vLLM raises."""
        known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
        arguments = AsyncEngineArgs(**engine_arguments(settings, known))
        gauge = _Gauge()
        with deaf_to_ctrl_c():
            llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[lambda *_: gauge])
        # It adds one for Prometheus, whose registry no one reads here, to those that it is given.
        kept = (one for one in llm.logger_manager.stat_loggers if not isinstance(one, PrometheusStatLogger))
        llm.logger_manager.stat_loggers = list(kept)
        return cls(llm, gauge, settings)

    async def budget(self) -> base.Budget:
        """Return the engine's sequences, and its KV cache in tokens and blocks."""
        cache, scheduler = self.config.cache_config, self.config.scheduler_config
        pool = cache.num_gpu_blocks * cache.block_size
        tokens = cache.kv_cache_size_tokens or pool
        groups = await self._llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        layers = layers_of(groups, cache.block_size, tokens / pool, self.config.max_in_flight_tokens)
        slots = scheduler.max_num_seqs
        return base.Budget(
            slots=slots,
            tokens=tokens,
            block=cache.block_size,
            layers=layers,
            step_tokens=scheduler.max_num_batched_tokens,
        )

    @property
    def config(self) -> Any:
        """VLLM's whole configuration, as it is resolved."""
        return self._llm.vllm_config

    @property
    def load(self) -> base.Load:
        """What the engine said after its last step. Raises `EngineDeadError`."""
        if self._llm.errored:
            raise base.EngineDeadError(_DEAD)
        return self._gauge.load

    @property
    def written(self) -> dict[str, int]:
        """Tokens that each request in flight has written."""
        # AsyncLLM takes them in step by step, though it hands an answer out as a whole.
        states = self._llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    @property
    def limits(self) -> RequestLimits:
        """What one request may take."""
        # The scheduler's own figure is less: vLLM raises it to the largest picture that the processor can make.
        return RequestLimits(
            context=self._llm.model_config.max_model_len, item=self._llm.input_processor.mm_encoder_cache_size
        )

    @property
    def takes_clips(self) -> bool:
        """Whether a clip's frames go in as one video."""
        processor = self._llm.renderer.mm_processor
        return processor is not None and processor.info.allowed_mm_limits.get("video", 0) > 0

    def _salt(self, request: base.EngineRequest) -> dict[str, str]:
        """Return what parts the engine's caches by tenant, and by page one that leaves its processes."""
        salt = request.tenant
        if self._settings.kv_offload_backend == "lmcache" and request.images:
            salt = f"{salt} {name_of(request)}"
        return {"cache_salt": salt} if salt else {}

    async def render(self, request: base.EngineRequest) -> Rendered:
        """Return the request by the checkpoint's own template and processor. Raises `EngineError`."""
        with self._classified(request):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._rendering, lambda: self._renderer.render(request, name_of(request))
            )

    async def generate(
        self, request: base.EngineRequest, rendered: Rendered, most_tokens: int
    ) -> base.Generation:
        """Return the text, of `most_tokens` at most. Cancelling the caller aborts it in the engine."""
        check_adapter(request, self._settings)
        params = SamplingParams(
            max_tokens=most_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            repetition_detection=RepetitionDetectionParams(**LOOPS),
            structured_outputs=StructuredOutputsParams(json=dict(request.schema)) if request.schema else None,
            skip_clone=True,  # it is this request's alone
            logprobs=0 if request.log_probabilities else None,  # of the token that was taken, and of no other
            **request.sampling.parameters,
        )
        # Where a prompt is cut, vLLM 0.32 winds its seed's generator back (`GPUModelRunner._bookkeeping_sync`). A
        # CPU's generator cannot be, and the whole engine would end.
        is_cut, device = self.config.scheduler_config.enable_chunked_prefill, self.config.device_config
        if params.seed is not None and is_cut and device.device_type == "cpu":
            params.seed = None
            log.warning("seed_left_out", request=request.id)
        answering = self._llm.generate(
            rendered.prompt | self._salt(request),
            params,
            request.id,
            lora_request=self._adapters[request.adapter] if request.adapter is not None else None,
            priority=request.priority,
        )
        with self._classified(request):
            # To its end, for a generator that is left alone aborts its request once more.
            (output,) = [output async for output in answering]
            return _generation(rendered, output)

    def close(self) -> None:
        """End the engine's processes; takes seconds. Cancel every request before, or it hangs."""
        self._rendering.shutdown()
        if handler := self._llm.output_handler:  # to which the end of the core would be an error
            handler.get_loop().call_soon_threadsafe(handler.cancel)
        try:
            self._llm.shutdown()
        except psutil.NoSuchProcess:  # the core ended by itself while vLLM looked for its children to kill it
            self._llm.engine_core.resources()
        del self._llm  # its finaliser, which shuts down once more, fails if the interpreter is about to end

    @contextmanager
    def _classified(self, request: base.EngineRequest) -> Iterator[None]:
        """Raise our errors for theirs, whose texts may quote a request; of a schema they name keywords alone."""
        try:
            yield
        except (asyncio.CancelledError, base.EngineError):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
            if isinstance(error, CoreDeadError) or self._llm.errored:
                raise base.EngineDeadError(_DEAD) from None
            said, _, why = str(error).partition(": ")
            if isinstance(error, VLLMClientError) and request.schema is not None and said == _GRAMMAR:
                raise base.EngineRefusedError(
                    f"The engine cannot write by this schema: {why:.200}.", FailureCode.FIELDS_UNAVAILABLE
                ) from None
            if isinstance(error, (VLLMClientError, MediaError)):
                raise base.EngineRefusedError(
                    f"The request does not fit into the engine: its context is {self.limits.context} tokens,"
                    f" one picture {self.limits.item} of them at most."
                ) from None
            cause = type(error.__cause__ or error).__name__
            if cause in _NO_MEMORY:
                raise base.EngineOverloadedError(
                    "There was no memory for this request beside the others."
                ) from None
            raise base.EngineError(f"The engine failed on this request: {cause}.") from None


class _Gauge(StatLoggerBase):  # type: ignore[misc]
    """Keeps what the engine's scheduler says after each step."""

    def __init__(self) -> None:
        self.load = base.Load(running=0, waiting=0, kv_used=0.0)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            last, drafts = self.load, scheduler_stats.spec_decoding_stats
            preempted = iteration_stats.num_preempted_reqs if iteration_stats is not None else 0
            self.load = base.Load(
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_used=scheduler_stats.kv_cache_usage,
                preemptions=last.preemptions + preempted,
                drafted=last.drafted + (drafts.num_draft_tokens if drafts else 0),
                accepted=last.accepted + (drafts.num_accepted_tokens if drafts else 0),
            )

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _generation(rendered: Rendered, output: Any) -> base.Generation:
    (answer,) = output.outputs
    early = f"The engine ended the request early: {answer.finish_reason}."
    usage = TokenUsage(
        prompt=rendered.tokens,
        image=rendered.image_tokens,
        cached=output.num_cached_tokens or 0,
        output=len(answer.token_ids),
    )
    return base.Generation(
        text=answer.text,
        verdict=verdict_of(answer.finish_reason, answer.text, otherwise=early),
        usage=usage,
        tokens=tuple(
            (known[token].decoded_token or "", known[token].logprob)
            for token, known in zip(answer.token_ids, answer.logprobs or (), strict=False)
        ),
        first_token_s=output.metrics.first_token_latency if output.metrics else None,
    )
