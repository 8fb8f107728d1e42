"""An endless Ray dataset: requests go in as they come, each answer wakes who asked."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import fields
from functools import partial
from typing import Any, Final

import ray
import ray.data
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.util.queue import Queue
from vllm.engine.arg_utils import AsyncEngineArgs

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineDeadError
from pecia_workers.engines.ray.rows import ERROR, answered, arriving, be_quiet
from pecia_workers.engines.vllm.options import engine_arguments
from pecia_workers.engines.vllm.processes import engine_environment

_SEQUENCES: Final = 64
"""Requests in one replica at a time, if no setting says."""
_GRACE_S: Final = 5.0
_PASSING: Final[dict[str, Any]] = {"num_cpus": 0, "max_retries": 0}
"""For tasks that hand rows on: they compute nothing, and a second try would begin by losing rows."""


class Stream:
    """The dataset, run by a thread of its own; asked on the loop."""

    def __init__(self, dataset: Any, queue: Queue, *, replicas: int, sequences: int) -> None:
        self.slots = replicas * sequences
        """Rows that all replicas work on at a time."""
        self._dataset = dataset
        self._queue = queue
        self._replicas = replicas
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: str | None = None
        self._thread = threading.Thread(target=self._run, name="ray-answers", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, settings: WorkerSettings) -> Stream:
        """Join the cluster that `RAY_ADDRESS` names, or start one on this machine. Raises whatever Ray raises."""
        here = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": be_quiet}, **here)
        try:
            return cls._over(settings)
        except BaseException:
            ray.shutdown()
            raise

    @classmethod
    def _over(cls, settings: WorkerSettings) -> Stream:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # byte: each row goes on at once, for its caller waits
        gpus = int(ray.cluster_resources().get("GPU", 0))
        replicas = settings.ray_engines or max(1, gpus // (settings.tensor_parallel_size or 1))
        sequences = settings.max_num_seqs or _SEQUENCES
        queue = Queue(actor_options={"num_cpus": 0})
        rows = ray.data.range(replicas, override_num_blocks=replicas).map_batches(
            partial(arriving, queue=queue), batch_size=1, **_PASSING
        )
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
        """Return the answer to a row. Raises `EngineDeadError` if there will be none."""
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
        """Raise `EngineDeadError` if no answer will come any more."""
        if self._end:
            raise EngineDeadError(self._end)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends. Takes seconds."""
        if not self._end:
            for _ in range(self._replicas):
                self._queue.put(None)
            self._thread.join(_GRACE_S)  # no longer: the result of what is still being read is not needed
        ray.shutdown()
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        end = "Ray's dataset has ended."
        try:
            for bundle in self._dataset.iter_internal_ref_bundles():
                for block in ray.get(bundle.block_refs):
                    for row in block.to_pylist():
                        self._tell(row)
        except Exception as error:  # noqa: BLE001  whatever it is, there are no more answers
            end = f"Ray's dataset broke off ({type(error).__name__}): see the logs of Ray's session."
        self._end = end
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up, end)

    def _tell(self, row: dict[str, Any]) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, row)

    def _wake(self, row: dict[str, Any]) -> None:
        waiting = self._waiting.get(row["name"])
        if waiting and not waiting.done():
            # The kind alone: the error's text may quote the request.
            waiting.set_result(row | {ERROR: row[ERROR].partition(":")[0]})

    def _give_up(self, end: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineDeadError(end))


def _config(settings: WorkerSettings, replicas: int, sequences: int, *, on_cpu: bool) -> Any:
    """Return how replicas run. Rows go through one by one: none waits for the rest of a batch."""
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
