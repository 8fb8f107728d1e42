"""An endless Ray dataset: requests become rows of Ray's vLLM processor, and each answer wakes its caller.

A row's prompt is rendered by the checkpoint's chat template and counted by its processor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import ray
import ray.data
from huggingface_hub import snapshot_download
from PIL import Image
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.util.queue import Queue
from transformers import AutoConfig, AutoProcessor
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RepetitionDetectionParams

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import vllm_revision
from pecia_workers.engines.requests import LOOPS, RequestLimits
from pecia_workers.engines.vllm.processes import engine_arguments, engine_environment
from pecia_workers.protocol.base import EngineDeadError, EngineRequest

_ALL_BUT_WEIGHTS: Final = ["*.json", "*.jinja", "*.txt", "*.model"]
_ERROR: Final = "__inference_error__"
"""Column in which Ray's processor reports why a row has no answer."""
_SEQUENCES: Final = 64
"""Default of concurrent requests in one replica."""
_GRACE_S: Final = 5.0
_PASSING: Final[dict[str, Any]] = {"num_cpus": 0, "max_retries": 0}
"""Options of tasks that pass rows on: they compute nothing, and a retry would lose rows."""


@dataclass(slots=True, kw_only=True)
class Prompts:
    """The model's tokenizer and processor in this process."""

    processor: Any = field(repr=False)
    limits: RequestLimits
    ends: frozenset[int]
    """End tokens of a text."""
    revision: str | None
    """Revision of vLLM and the model; None for a name on the Hub, whose weights may be elsewhere."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Prompts:
        """Read the checkpoint's configuration, tokenizer and processor; takes seconds.

        For a name on the Hub, downloads all files except the weights, which Ray fetches.
        """
        directory = Path(settings.model)
        is_here = directory.is_dir()
        if not is_here:
            revision = settings.engine_options.get("revision")
            directory = Path(
                snapshot_download(settings.model, revision=revision, allow_patterns=_ALL_BUT_WEIGHTS)
            )
        options = settings.engine_options.get("mm_processor_kwargs") or {}
        processor = AutoProcessor.from_pretrained(directory, **options)  # from this machine  # nosec B615
        context = settings.max_model_len
        if not context:
            config = AutoConfig.from_pretrained(directory)  # from this machine  # nosec B615
            context = int(config.get_text_config().max_position_embeddings)
        # What vLLM ends a text at: the tokenizer's token, and those of the generation's configuration.
        ends = {processor.tokenizer.eos_token_id}
        generation = directory / "generation_config.json"
        if generation.is_file():
            more = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            ends |= set(more) if isinstance(more, list) else {more}
        return cls(
            processor=processor,
            limits=RequestLimits(context=context, item=context),
            ends=frozenset(ends - {None}),
            revision=vllm_revision(settings) if is_here or settings.cache_revision else None,
        )

    async def prompt_tokens(self, request: EngineRequest) -> int:
        """Return the length of the request's prompt, as the checkpoint's processor renders it."""

        def rendered() -> int:
            pictures = _pictures(request) or None
            made = self.processor(text=[self._words(request)], images=pictures, return_tensors="np")
            return int(made["input_ids"].shape[-1])

        return await asyncio.to_thread(rendered)

    def words(self, request: EngineRequest) -> int:
        """Return the prompt's tokens without pictures."""
        words = self._words(replace(request, images=(), clip=None))
        return len(self.processor.tokenizer.encode(words, add_special_tokens=False))

    def row(self, request: EngineRequest) -> dict[str, Any]:
        """Return the request as a row for the processor, under a unique name."""
        params = {
            "max_tokens": request.max_output_tokens,
            "repetition_detection": RepetitionDetectionParams(**LOOPS),
            **request.sampling.parameters,
        }
        if request.schema:
            params["structured_outputs"] = {"json": json.dumps(request.schema)}
        return {
            "name": uuid4().hex,
            "prompt": self._words(request),
            "multimodal_data": {"image": _pictures(request)},
            "sampling_params": params,
        }

    def _words(self, request: EngineRequest) -> str:
        messages = request.messages([{"type": "image"} for _ in request.images])
        words: str = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return words


def _pictures(request: EngineRequest) -> list[Image.Image]:
    return [Image.fromarray(image) for image in request.images]


class Stream:
    """The dataset, run by its own thread, with requests from the loop."""

    def __init__(self, dataset: Any, queue: Queue, *, replicas: int, sequences: int) -> None:
        self.slots = replicas * sequences
        """Concurrent rows of all replicas."""
        self._dataset = dataset
        self._queue = queue
        self._replicas = replicas
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = ""
        self._thread = threading.Thread(target=self._run, name="ray-answers", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, settings: WorkerSettings) -> Stream:
        """Join the cluster that `RAY_ADDRESS` names, or start one on this machine. Raises whatever Ray raises."""

        def be_quiet() -> None:  # a warning of the processor may quote a request
            logging.disable(logging.WARNING)

        here = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": be_quiet}, **here)
        try:
            return cls._over(settings)
        except BaseException:
            ray.shutdown()
            raise

    @classmethod
    def _over(cls, settings: WorkerSettings) -> Stream:
        # These two run in processes of Ray, to which they go by value: there this module would take seconds to import.

        def arriving(_: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
            while (row := queue.get()) is not None:
                yield {column: [value] for column, value in row.items()}

        def answered(row: dict[str, Any]) -> dict[str, Any]:
            tokens = list(row["generated_tokens"])
            return {
                "name": row["name"],
                "text": row["generated_text"],
                "tokens": tokens,
                "prompt": row["num_input_tokens"],
            }

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # byte: each row goes on at once, for its caller waits
        gpus = int(ray.cluster_resources().get("GPU", 0))
        replicas = settings.ray_engines or max(1, gpus // (settings.tensor_parallel_size or 1))
        sequences = settings.max_num_seqs or _SEQUENCES
        queue = Queue(actor_options={"num_cpus": 0})
        # Not `range`, whose task takes a core: it would never run once the replicas have them all.
        starts = ray.data.from_items(
            [{"replica": number} for number in range(replicas)], override_num_blocks=replicas
        )
        rows = starts.map_batches(arriving, batch_size=1, **_PASSING)
        processor = build_processor(
            _config(settings, replicas, sequences, on_cpu=not gpus),
            postprocess=answered,
            preprocess_map_kwargs=_PASSING,
            postprocess_map_kwargs=_PASSING,
        )
        for stage in processor.list_stage_names():
            # A page that kills its replica ends the engine, so that the fleet counts the death against the page.
            processor.get_stage_by_name(stage).map_batches_kwargs["max_restarts"] = 0
        return cls(processor(rows), queue, replicas=replicas, sequences=sequences)

    async def ask(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a row. Raises `EngineDeadError` if the stream has ended."""
        self.check()
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[row["name"]] = answer
        try:
            await asyncio.to_thread(self._queue.put, row)
            return await answer
        finally:
            self._waiting.pop(row["name"], None)

    def check(self) -> None:
        """Raise `EngineDeadError` if the stream has ended."""
        if self._end:
            raise EngineDeadError(self._end)

    def close(self) -> None:
        """Leave the cluster; a cluster started here ends. Takes seconds."""
        if not self._end:
            for _ in range(self._replicas):
                self._queue.put(None)
            self._thread.join(_GRACE_S)  # no longer: results of pages still being read are not needed
        ray.shutdown()
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        end = "Ray's dataset has ended."
        try:
            for bundle in self._dataset.iter_internal_ref_bundles():
                for block in ray.get(bundle.block_refs):
                    for row in block.to_pylist():
                        self._hand_over(row)
        except Exception as error:  # noqa: BLE001  whatever it is, there are no more answers
            end = f"Ray's dataset broke off ({type(error).__name__}): see the logs of Ray's session."
        self._end = end
        self._hand_over(None)

    def _hand_over(self, row: dict[str, Any] | None) -> None:
        """Let the loop, if it still runs, settle a row's request, or all of them."""
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, row)

    def _settle(self, row: dict[str, Any] | None) -> None:
        """Wake the caller of a row with its answer; None wakes all callers, as no answers follow."""
        for name in list(self._waiting) if row is None else [row["name"]]:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.done():
                continue
            if row is None:
                waiting.set_exception(EngineDeadError(self._end))
            else:  # the kind alone: the error's text may quote the request
                waiting.set_result(row | {"error": row[_ERROR].partition(":")[0]})


def _config(settings: WorkerSettings, replicas: int, sequences: int, *, on_cpu: bool) -> Any:
    """Return the configuration of replicas. Rows pass one by one, so that none waits for a batch."""
    arguments = engine_arguments(settings, {field.name for field in fields(AsyncEngineArgs)})
    arguments |= {"scheduling_policy": "fcfs", "max_num_seqs": sequences}
    return vLLMEngineProcessorConfig(
        model_source=arguments.pop("model"),
        engine_kwargs=arguments,
        batch_size=1,
        max_concurrent_batches=sequences,
        concurrency=(replicas, replicas),
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
        should_continue_on_error=True,
        log_engine_metrics=False,
        placement_group_config={"bundles": [{"CPU": 1, "GPU": 0}]} if on_cpu else None,
        runtime_env={"env_vars": engine_environment(settings.log_level, on_cpu=on_cpu)},
    )
