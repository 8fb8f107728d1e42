"""One running vLLM engine. Imports vLLM, which is slow and needs `pecia[vllm]`."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import psutil
import structlog
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import layers_of
from pecia_workers.engines.requests import LOOPS, RequestLimits, check_adapter, verdict_of
from pecia_workers.engines.vllm.processes import deaf_to_ctrl_c, engine_arguments, kill_cores
from pecia_workers.engines.vllm.rendering import Rendered, Renderer, name_of
from pecia_workers.media.pages import MediaError
from pecia_workers.protocol import base

log = structlog.get_logger(__name__)

_GRAMMAR: Final = "Grammar error"
_DEAD: Final = "The engine's process has ended: see the worker's log."
_NO_MEMORY: Final = ("OutOfMemoryError", "MemoryError")


def configured(settings: WorkerSettings) -> tuple[AsyncEngineArgs, Any]:
    """Return vLLM's arguments and configuration. Raises `EngineUnavailableError` and whatever vLLM raises."""
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    arguments = AsyncEngineArgs(**engine_arguments(settings, known))
    return arguments, arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)


@contextmanager
def _core_first(config: Any, *, warm: bool) -> Iterator[None]:
    """Start the core, while the `AsyncLLM` loads its tokenizer and processor.

    vLLM itself starts the core after loading them. `warm`: whether the processor is also run once meanwhile.
    """
    started, make = threading.Event(), EngineCoreClient.make_async_mp_client

    def join(*_: Any, renderer: Any, **__: Any) -> Any:
        if warm:
            renderer.start_mm_warmup_in_background()
        return starting.result()

    # vLLM tells the renderer when the core's process is there: the configuration has been passed to it.
    told = SimpleNamespace(start_mm_warmup_in_background=started.set)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="core") as thread:
        starting = thread.submit(make, config, Executor.get_class(config), log_stats=True, renderer=told)
        starting.add_done_callback(lambda _: started.set())
        started.wait()
        EngineCoreClient.make_async_mp_client = staticmethod(join)
        try:
            yield
        except BaseException:
            kill_cores()
            raise
        finally:
            EngineCoreClient.make_async_mp_client = staticmethod(make)


class VllmSession:
    """A loaded engine, to be used on one loop."""

    def __init__(self, llm: Any, gauge: _Gauge, settings: WorkerSettings) -> None:
        self._llm = llm
        self._gauge = gauge
        self._settings = settings
        self._adapters = {
            name: LoRARequest(name, number, directory)
            for number, (name, directory) in enumerate(settings.adapters.items(), start=1)
        }
        self._renderer = Renderer(llm.renderer)
        self.takes_clips = self._renderer.takes_clips
        self._rendering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
        """One thread, so that a cancelled request that is still being rendered runs beside no other."""

    @classmethod
    def open(cls, settings: WorkerSettings, arguments: Any, config: Any, *, warm: bool) -> VllmSession:
        """Load the model, in seconds to minutes. Raises vLLM's errors.

        `warm`: whether pages will be rendered in this process.
        """
        gauge = _Gauge()
        with deaf_to_ctrl_c(), _core_first(config, warm=warm):
            llm = AsyncLLM.from_vllm_config(
                config,
                usage_context=UsageContext.ENGINE_CONTEXT,
                stat_loggers=[lambda *_: gauge],
                enable_log_requests=arguments.enable_log_requests,
                disable_log_stats=arguments.disable_log_stats,
            )
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
        """The resolved configuration of vLLM."""
        return self._llm.vllm_config

    @property
    def load(self) -> base.Load:
        """Load after the engine's last step. Raises `EngineDeadError`."""
        if self._llm.errored:
            raise base.EngineDeadError(_DEAD)
        return self._gauge.load

    @property
    def written(self) -> Mapping[str, int]:
        """Tokens written by each request in flight."""
        return _Written(self._llm.output_processor)

    @property
    def limits(self) -> RequestLimits:
        """Limits of one request."""
        # The scheduler's own figure is less: vLLM raises it to the largest picture that the processor can make.
        return RequestLimits(
            context=self._llm.model_config.max_model_len, item=self._llm.input_processor.mm_encoder_cache_size
        )

    def _salt(self, request: base.EngineRequest) -> dict[str, str]:
        """Return the salt that separates the engine's caches by tenant, and by page for caches outside of it."""
        salt = request.tenant
        if self._settings.kv_offload_backend == "lmcache" and request.images:
            salt = f"{salt} {name_of(request)}"
        return {"cache_salt": salt} if salt else {}

    async def render(self, request: base.EngineRequest) -> Rendered:
        """Render the request by the checkpoint's template and processor. Raises `EngineError`."""
        with self._classified(request):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._rendering, lambda: self._renderer.render(request, name_of(request))
            )

    async def generate(
        self, request: base.EngineRequest, rendered: Rendered, most_tokens: int
    ) -> base.Generation:
        """Return the text, of at most `most_tokens`. Cancelling the caller aborts the request in the engine."""
        check_adapter(request, self._settings)
        params = SamplingParams(
            max_tokens=most_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            repetition_detection=RepetitionDetectionParams(**LOOPS),
            structured_outputs=StructuredOutputsParams(json=dict(request.schema)) if request.schema else None,
            skip_clone=True,  # it is this request's alone
            logprobs=0 if request.log_probabilities else None,  # of the token that was taken, and of no other
            flat_logprobs=True,
            detokenize=bool(request.sampling.stop),  # else once, at the end
            **request.sampling.parameters,
        )
        # Where a prompt is cut, vLLM 0.32 winds its seed's generator back (`GPUModelRunner._bookkeeping_sync`). A
        # CPU's generator cannot be, and the engine would end.
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
            return self._generation(rendered, output, params)

    def _generation(self, rendered: Rendered, output: Any, params: SamplingParams) -> base.Generation:
        (answer,) = output.outputs
        pieces = self._pieces(output, params)
        text = answer.text if params.detokenize else "".join(pieces)
        logged = answer.logprobs
        early = f"The engine ended the request early: {answer.finish_reason}."
        usage = TokenUsage(
            prompt=rendered.tokens,
            image=rendered.image_tokens,
            cached=output.num_cached_tokens or 0,
            output=len(answer.token_ids),
        )
        return base.Generation(
            text=text,
            verdict=verdict_of(answer.finish_reason, text, otherwise=early),
            usage=usage,
            # The first of each position is that of the token which was taken.
            tokens=tuple(zip(pieces, (logged.logprobs[at] for at in logged.start_indices), strict=False))
            if logged
            else (),
            first_token_s=output.metrics.first_token_latency if output.metrics else None,
        )

    def _pieces(self, output: Any, params: SamplingParams) -> list[str]:
        """Return each token's addition to the text, as vLLM streams it: a split character comes with its last token."""
        (answer,) = output.outputs
        about = {"request_id": output.request_id, "prompt_token_ids": output.prompt_token_ids}
        request = SimpleNamespace(**about, prompt_embeds=None, sampling_params=params)
        text = IncrementalDetokenizer.from_new_request(self._llm.renderer.tokenizer, request)
        pieces = []
        last = len(answer.token_ids) - 1
        for at, token in enumerate(answer.token_ids):
            text.update([token], at == last and answer.finish_reason == "stop")
            pieces.append(text.get_next_output_text(True, True))
        return pieces

    def close(self) -> None:
        """End the engine's processes, in seconds. Every request must be cancelled before, or it hangs."""
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
        """Turn vLLM's errors, whose texts may quote a request, into ours; errors of schemas name only keywords."""
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
                    f"The engine does not support this schema: {why:.200}.", FailureCode.FIELDS_UNAVAILABLE
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


class _Written(Mapping[str, int]):
    """A lazy view, as hundreds of requests may be in flight.

    AsyncLLM receives tokens step by step, although it returns an answer as a whole.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __getitem__(self, request: str) -> int:
        internal = self._processor.external_req_ids.get(request) or [request]
        return int(self._processor.request_states[internal[-1]].detokenizer.num_output_tokens())

    def __iter__(self) -> Iterator[str]:
        return iter(self._processor.external_req_ids)

    def __len__(self) -> int:
        return len(self._processor.external_req_ids)


class _Gauge(StatLoggerBase):  # type: ignore[misc]
    """Keeps the scheduler's statistics of the last step."""

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
