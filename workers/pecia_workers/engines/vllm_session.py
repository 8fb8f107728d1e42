"""One running vLLM engine. The only module of the fleet that imports vLLM: slow, and not without `pecia[vllm]`."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog
from PIL import Image
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.renderers import ChatParams
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams
from vllm.transformers_utils.processor import cached_processor_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as CoreDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_workers.batching.cost import UnknownFamilyError, counter_for, processor_counter
from pecia_workers.engines.base import (
    Budget,
    EngineDeadError,
    EngineError,
    EngineOverloadedError,
    EngineRefusedError,
    Generation,
    Load,
)
from pecia_workers.engines.loops import LOOPS
from pecia_workers.engines.vllm_checkpoint import checkpoint_directory
from pecia_workers.engines.vllm_fitting import Room
from pecia_workers.engines.vllm_options import engine_arguments
from pecia_workers.engines.vllm_pricing import Modalities, PromptPrice, calibrated
from pecia_workers.engines.vllm_processes import deaf_to_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.batching.cost import TokenCounter
    from pecia_workers.engines.base import ClipTimes, EngineRequest

log = structlog.get_logger(__name__)

_CHAT: Final = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})

_GRAMMAR: Final = "Grammar error"
_DEAD: Final = "The engine's process has ended: see the worker's log."
_NO_MEMORY: Final = ("OutOfMemoryError", "MemoryError")
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

    def __init__(self, llm: Any, gauge: _Gauge, settings: WorkerSettings) -> None:
        self._llm = llm
        self._gauge = gauge
        self._adapters = {
            name: LoRARequest(name, number, directory)
            for number, (name, directory) in enumerate(settings.adapters.items(), start=1)
        }
        self._counter = _counter(llm) if settings.exact_cost else None

    @classmethod
    def open(cls, settings: WorkerSettings) -> VllmSession:
        """Load the model; takes seconds to minutes. Raises `EngineUnavailableError` and whatever vLLM raises."""
        known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
        arguments = AsyncEngineArgs(**engine_arguments(settings, known))
        gauge = _Gauge()
        with deaf_to_ctrl_c():
            return cls(AsyncLLM.from_engine_args(arguments, stat_loggers=[gauge.logger]), gauge, settings)

    @property
    def budget(self) -> Budget:
        """The engine's sequences, and its KV cache in tokens."""
        cache = self._llm.vllm_config.cache_config
        tokens = cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size
        return Budget(slots=self._llm.vllm_config.scheduler_config.max_num_seqs, tokens=tokens)

    @property
    def device(self) -> str:
        """What kind of device the model is on, such as `cpu` or `cuda`."""
        kind: str = self._llm.vllm_config.device_config.device_type
        return kind

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

    @property
    def written(self) -> dict[str, int]:
        """Tokens that each request in flight has written."""
        # AsyncLLM takes them in step by step, though it hands an answer out as a whole.
        states = self._llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    @property
    def room(self) -> Room:
        """What one request may take."""
        return Room(context=self.context, item=self._picture_limit)

    @property
    def takes_clips(self) -> bool:
        """Whether a clip's frames go in as one video."""
        counter = self._counter
        return bool(self._limit("video")) and (not counter or counter.by_processor or counter.takes_video)

    async def price(self) -> PromptPrice | None:
        """Return exact prices that agree with the engine's own count; None if neither formula nor processor counts.

        Raises `EngineUnavailableError` if a formula does not agree.
        """
        if self._counter is None:
            return None
        tokenizer = self._llm.get_tokenizer()
        modalities = Modalities(images=self._limit("image"), clips=self.takes_clips)
        return await calibrated(
            self._counter,
            lambda words: len(tokenizer.encode(words, add_special_tokens=False)),
            self,
            modalities,
        )

    @property
    def _takes_seeds(self) -> bool:
        """Whether requests may have seeds of their own.

        Where a prompt is cut, vLLM 0.32 winds its seed's generator back (`GPUModelRunner._bookkeeping_sync`). A CPU's
        generator cannot be, and the whole engine would end.
        """
        return self.device != "cpu" or not self._llm.vllm_config.scheduler_config.enable_chunked_prefill

    def _limit(self, modality: str) -> int:
        limit: int = self._llm.model_config.multimodal_config.get_limit_per_prompt(modality)
        return limit

    async def prompt_tokens(self, request: EngineRequest) -> int:
        """Return the length of the request's prompt, as the engine renders it."""
        return (await self.render(request)).tokens

    async def render(self, request: EngineRequest) -> Rendered:
        """Return the request by the checkpoint's own chat template and processor. Raises `EngineError`."""
        with self._told_apart():
            clip = request.clip if self.takes_clips else None
            prompt = await (self._render_clip(request, clip) if clip else self._render_pictures(request))
        placed = prompt.get("mm_placeholders", {})
        return Rendered(
            prompt=prompt,
            tokens=len(prompt["prompt_token_ids"]),
            image_tokens=sum(place.get_num_embeds() for places in placed.values() for place in places),
        )

    async def _render_pictures(self, request: EngineRequest) -> Any:
        pictures = [{"type": "image_pil", "image_pil": Image.fromarray(image)} for image in request.images]
        _, (prompt,) = await self._llm.renderer.render_chat_async([request.messages(pictures)], _CHAT)
        return prompt

    async def _render_clip(self, request: EngineRequest, times: ClipTimes) -> Any:
        words = self._llm.get_tokenizer().apply_chat_template(
            request.messages([{"type": "video"}]), add_generation_prompt=True, tokenize=False
        )
        # Chat messages have no way to carry frames that are in memory.
        prompt = {"prompt": words, "multi_modal_data": {"video": [_clip(request, times)]}}
        (rendered,) = await self._llm.renderer.render_cmpl_async([prompt])
        return rendered

    async def generate(self, request: EngineRequest, rendered: Rendered, most_tokens: int) -> Generation:
        """Return the text, of `most_tokens` at most. Cancelling the caller aborts it in the engine."""
        params = _sampling(request, most_tokens)
        if params.seed is not None and not self._takes_seeds:
            params.seed = None
            log.warning("seed_left_out", request=request.id)
        answering = self._llm.generate(
            rendered.prompt,
            params,
            request.id,
            lora_request=self._adapter(request),
            priority=request.priority,
        )
        with self._told_apart(), _schema_refused(request):
            # To its end, for a generator that is left alone aborts its request once more.
            (output,) = [output async for output in answering]
            return _generation(rendered, output)

    def _adapter(self, request: EngineRequest) -> LoRARequest | None:
        if request.adapter is None:
            return None
        if request.adapter not in self._adapters:
            raise EngineRefusedError(
                "The task names an adapter that this engine does not have.", FailureCode.ADAPTER_UNAVAILABLE
            )
        return self._adapters[request.adapter]

    def close(self) -> None:
        """End the engine's processes; takes seconds. Cancel every request before, or it hangs."""
        self._llm.shutdown()
        del self._llm  # its finaliser, which shuts down once more, fails if the interpreter is about to end

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
            if cause in _NO_MEMORY:
                raise EngineOverloadedError(
                    "There was no memory for this request beside the others."
                ) from None
            raise EngineError(f"The engine failed on this request: {cause}.") from None

    @property
    def _picture_limit(self) -> int:
        # The scheduler's own figure is less: vLLM raises it to the largest picture that the processor can make.
        limit: int = self._llm.input_processor.mm_encoder_cache_size
        return limit


@contextmanager
def _schema_refused(request: EngineRequest) -> Iterator[None]:
    """Raise our error for a schema that vLLM cannot decode by. Its words name keywords and never the picture."""
    try:
        yield
    except VLLMClientError as error:
        said, _, why = str(error).partition(": ")
        if request.schema is None or said != _GRAMMAR:
            raise
        raise EngineRefusedError(
            f"The engine cannot write by this schema: {why:.200}.", FailureCode.FIELDS_UNAVAILABLE
        ) from None


class _Gauge:
    """Keeps what the engine's scheduler says after each step."""

    def __init__(self) -> None:
        self.load = Load(running=0, waiting=0, kv_used=0.0)

    def logger(self, *_config: Any) -> StatLoggerBase:
        """Return a logger for one engine core that writes here."""
        return _StepLogger(self)


class _StepLogger(StatLoggerBase):  # type: ignore[misc]
    def __init__(self, gauge: _Gauge) -> None:
        self._gauge = gauge

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            last, drafts = self._gauge.load, scheduler_stats.spec_decoding_stats
            self._gauge.load = Load(
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_used=scheduler_stats.kv_cache_usage,
                preemptions=last.preemptions + _preempted(iteration_stats),
                drafted=last.drafted + (drafts.num_draft_tokens if drafts else 0),
                accepted=last.accepted + (drafts.num_accepted_tokens if drafts else 0),
            )

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _preempted(iteration_stats: Any) -> int:
    return iteration_stats.num_preempted_reqs if iteration_stats is not None else 0


def _counter(llm: Any) -> TokenCounter | None:
    """Return the formula of the model's family, with the options that the engine was started with.

    For one without a formula the checkpoint's processor counts, if it can.
    """
    config = llm.model_config
    multimodal = config.multimodal_config
    try:
        return counter_for(
            checkpoint_directory(config.model, config.revision),
            multimodal.mm_processor_kwargs or {},
            text_tokens=lambda words: len(llm.get_tokenizer().encode(words, add_special_tokens=False)),
            video_pruning_rate=multimodal.video_pruning_rate or 0.0,
        )
    except UnknownFamilyError as error:
        counter = _processors_counter(config, error.model_type)
        if counter is None:
            log.warning("cost_is_counted_by_the_engine", family=error.model_type)
        return counter


def _processors_counter(config: Any, family: str) -> TokenCounter | None:
    try:
        return processor_counter(cached_processor_from_config(config), family)
    except Exception as error:  # noqa: BLE001  a checkpoint may bring code of its own
        log.warning("processor_unusable", family=family, error=type(error).__name__)
        return None


def _clip(request: EngineRequest, times: ClipTimes) -> tuple[NDArray[np.uint8], Mapping[str, Any]]:
    """Return the frames and what the processors want to know of them; nothing is sampled again."""
    return np.stack(request.images), {
        "fps": times.fps,
        "duration": times.duration,
        "total_num_frames": max(round(times.duration * times.fps), times.indices[-1] + 1),
        "frames_indices": list(times.indices),
        "video_backend": "opencv",
        "do_sample_frames": False,
    }


def _sampling(request: EngineRequest, most_tokens: int) -> SamplingParams:
    sampling = request.sampling
    schema = StructuredOutputsParams(json=dict(request.schema)) if request.schema else None
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        max_tokens=most_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
        repetition_detection=RepetitionDetectionParams(**LOOPS),
        structured_outputs=schema,
        logprobs=0 if request.log_probabilities else None,  # of the token that was taken, and of no other
        **sampling.special,
    )


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
        tokens=tuple(map(_token, answer.token_ids, answer.logprobs or ())),
        first_token_s=output.metrics.first_token_latency if output.metrics else None,
    )


def _token(token: int, known: Mapping[int, Any]) -> tuple[str, float]:
    return known[token].decoded_token or "", known[token].logprob
