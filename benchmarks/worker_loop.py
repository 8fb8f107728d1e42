"""What the worker's own process takes of a core for a page and for a token that vLLM wrote, by stage and by thread.

All of it is real: the engine behind its batcher, and vLLM's front end (`AsyncLLM`, its sockets, its encoders). Its core
is a stand-in, a process that answers at once: a token for each page that comes and, once all are in flight, one for
each of them in every step, to lengths that differ. Pages of 2,800 picture tokens come in sealed memory, as preparers
return them. What a stage takes is the difference of two runs: without pictures, with them, with many tokens, with their
log-probabilities.

Caveats. CPU seconds. The part's own way (claim, commit, verdict) is not in them: `claim_to_commit.py` has it. No GPU
takes the pixels, and no core competes for the machine's memory.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zmq.asyncio

from harness.engines import CHECKPOINTS, checkpoint
from harness.report import Report, Table, parser, spread
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import ContinuousPolicy
from pecia_workers.engines.requests import Preparation
from pecia_workers.engines.vllm.engine import VllmEngine
from pecia_workers.media.frames import mapped
from pecia_workers.protocol.base import EngineRequest, Generation
from pecia_workers.reading.page import instruction_for

SIDE = (1764, 1260)
"""2,835 picture tokens."""
MOST_BYTES = 2**30
SHORT = 2
_SHOWN = 0.05
_GROUPS = ("asyncio", "ZMQbg", "render")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run: what its requests are."""

    pictures: bool = True
    tokens: int = SHORT
    logged: bool = False


def main() -> None:
    """Run the stages, round by round, and print what they take."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=300, help="in flight at a time")
    made.add_argument("--tokens", type=int, default=400)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--float32", action="store_true", help="pixels normalised before they reach the core")
    made.add_argument(
        "--model", type=Path, help="a checkpoint of Qwen2.5-VL; default: a tiny one that this program makes"
    )
    arguments = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        directory = Path(scratch)
        model = arguments.model or checkpoint(CHECKPOINTS["tiny"], directory / "tiny")
        took = asyncio.run(_measured(arguments, str(model), directory))
    _report(took, arguments).tell(as_json=arguments.json)


async def _measured(given: Any, model: str, directory: Path) -> dict[Stage, list[Counter[str]]]:
    """Return the CPU seconds of this process's threads, for each stage and round."""
    settings = WorkerSettings(
        engine="vllm",
        model=model,
        stages="read",
        cache=False,
        preparers=0,
        log_level="warning",
        max_model_len=4096,
        max_num_seqs=given.pages + 20,
        max_num_batched_tokens=16_384,
        kv_cache_bytes=1 << 30,
        enforce_eager=True,
        prepared_bytes=MOST_BYTES,
        engine_options={
            "mm_device_do_normalize": not given.float32,
            "mm_processor_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 1300 * 1800}},
        },
    )
    waits_for = _stand_in(directory)
    engine = VllmEngine(settings)
    await engine.start()
    batcher = Batcher(engine, ContinuousPolicy(1.0), LearnedLengths(0.9), priced=lambda *_: None)
    await _pages_from_memory(engine)
    stages = (
        Stage(pictures=False),
        Stage(),
        Stage(tokens=given.tokens),
        Stage(tokens=given.tokens, logged=True),
    )
    took: dict[Stage, list[Counter[str]]] = {stage: [] for stage in stages}
    for number in range(given.rounds + 1):
        for stage in stages:
            requests = [_request(f"{number}-{page}", page, stage) for page in range(given.pages)]
            waits_for.value = given.pages
            before = _threads()
            answers = await asyncio.gather(*map(batcher.generate, requests))
            after = _threads()
            if number:  # the first warms up
                took[stage].append(_difference(before, after, answers))
    await engine.stop()
    return took


def _request(name: str, page: int, stage: Stage) -> EngineRequest:
    length = max(1, int(stage.tokens * (0.75 + 0.5 * page / 300))) if stage.tokens > SHORT else SHORT
    return EngineRequest(
        id=name,
        images=(np.broadcast_to(np.uint8(page % 256), (*SIDE, 3)),) if stage.pictures else (),
        workload=DocumentType.PRESCRIPTION,
        instruction=instruction_for(DocumentType.PRESCRIPTION, None),
        max_output_tokens=length,
        log_probabilities=stage.logged,
    )


async def _pages_from_memory(engine: VllmEngine) -> None:
    """Have pages rendered as preparers do it, all of them alike: in sealed memory, named by this process."""
    from pecia_workers.engines.vllm import rendering  # noqa: PLC0415  imports vLLM

    session: Any = engine._session
    pixels = np.random.default_rng(1).integers(0, 255, (*SIDE, 3), np.uint8)
    made: dict[bool, int] = {}
    for pictures in (True, False):
        request = replace(
            _request("first", 1, Stage(pictures=pictures)), images=(pixels,) if pictures else ()
        )
        made[pictures] = rendering.packed(await session.render(request)).descriptor

    async def render(request: EngineRequest) -> Any:
        name = await asyncio.to_thread(
            rendering.name_of, replace(request, images=(pixels,) * len(request.images))
        )
        memory = await asyncio.to_thread(mapped, os.dup(made[bool(request.images)]), MOST_BYTES)
        return rendering.named(await asyncio.to_thread(rendering.unpacked, memory), f"{name}-{request.id}")

    engine._preparation = Preparation(render, 4, MOST_BYTES)


def _stand_in(directory: Path) -> Any:
    """Have vLLM's front end speak to a stand-in for its core; return for how many requests that waits."""
    from vllm.v1.engine import core_client  # noqa: PLC0415  slow

    inputs, outputs = (f"ipc://{directory / name}" for name in ("inputs", "outputs"))

    class Client(core_client.AsyncMPClient):
        """vLLM's own client, on sockets of the stand-in."""

        def __init__(self, config: Any) -> None:
            context = zmq.Context(io_threads=2)
            self.ctx = zmq.asyncio.Context(context)
            self.vllm_config = config
            config.cache_config.num_gpu_blocks = 2**17
            self.resources = core_client.BackgroundResources(ctx=context)
            self._finalizer = core_client.weakref.finalize(self, self.resources)
            self.input_socket = self.resources.input_socket = core_client.make_zmq_socket(
                self.ctx, inputs, zmq.ROUTER, bind=True
            )
            self.resources.output_socket = core_client.make_zmq_socket(self.ctx, outputs, zmq.PULL)
            self.encoder = core_client.MsgpackEncoder()
            self.decoder = core_client.MsgpackDecoder(core_client.EngineCoreOutputs)
            self.engine_ranks_managed, self.core_engine = [0], b"\x00\x00"
            self.utility_results: dict[int, Any] = {}
            self.client_count, self.client_index = 1, 0
            self.outputs_queue: asyncio.Queue[Any] = asyncio.Queue()
            zmq.Socket.shadow(self.input_socket).recv_multipart()

        async def call_utility_async(self, method: str, *_: Any) -> Any:
            return ("generate",) if method == "get_supported_tasks" else []

        def shutdown(self, timeout: float | None = None) -> None:
            core.terminate()
            super().shutdown(timeout)

    context = multiprocessing.get_context("fork")
    waits_for = context.Value("i", 0)
    core = context.Process(target=_core, args=(inputs, outputs, waits_for), daemon=True)
    core.start()
    core_client.EngineCoreClient.make_async_mp_client = staticmethod(
        lambda vllm_config, *_, **__: Client(vllm_config)
    )
    return waits_for


def _core(inputs: str, outputs: str, waits_for: Any) -> None:
    """Read requests and write tokens for them, as vLLM's core does."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason  # noqa: PLC0415
    from vllm.v1.metrics.stats import SchedulerStats  # noqa: PLC0415
    from vllm.v1.outputs import LogprobsLists  # noqa: PLC0415
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder  # noqa: PLC0415

    context = zmq.Context()
    reader, writer = context.socket(zmq.DEALER), context.socket(zmq.PUSH)
    reader.setsockopt(zmq.IDENTITY, b"\x00\x00")
    reader.connect(inputs)
    writer.connect(outputs)
    reader.send(b"ready")
    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreRequest)
    chance = np.random.default_rng(2)

    def write(names: list[str], step: int) -> None:
        written = []
        for name in names:
            length, logged = left[name]
            token = int(chance.integers(300, 900))
            logs = LogprobsLists(
                np.array([[token]], np.int32), np.array([[-0.01]], np.float32), np.array([1], np.int32)
            )
            written.append(
                EngineCoreOutput(
                    request_id=name,
                    new_token_ids=[token],
                    new_logprobs=logs if logged else None,
                    finish_reason=FinishReason.LENGTH if step >= length else None,
                )
            )
            if step >= length:
                del left[name]
        stats = SchedulerStats(num_running_reqs=len(left), kv_cache_usage=0.5)
        writer.send_multipart(encoder.encode(EngineCoreOutputs(outputs=written, scheduler_stats=stats)))

    while True:
        left: dict[str, tuple[int, bool]] = {}
        while len(left) < max(1, waits_for.value):
            kind, *frames = reader.recv_multipart(copy=False)
            if bytes(kind.buffer) == b"\x00":
                params = (request := decoder.decode([frame.buffer for frame in frames])).sampling_params
                left[request.request_id] = (params.max_tokens, params.logprobs is not None)
                write([request.request_id], 1)  # until then it is a prompt that waits, and keeps others out
        step = 1
        while left:
            step += 1
            write(list(left), step)


def _threads() -> dict[str, float]:
    """Return the CPU seconds of each of this process's threads, by number and name."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name)) or (task / "comm").read_text().strip()
        group = next((group for group in _GROUPS if name.startswith(group)), name)
        found[f"{task.name} {group}"] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def _difference(before: dict[str, float], after: dict[str, float], answers: list[Generation]) -> Counter[str]:
    took: Counter[str] = Counter()
    for name, seconds in after.items():
        took[name.partition(" ")[2]] += seconds - before.get(name, 0.0)  # type: ignore[assignment]
    took["_written"] = sum(answer.usage.output for answer in answers)
    return took


def _report(took: dict[Stage, list[Counter[str]]], given: Any) -> Report:
    bare, page, long, logged = took.values()
    names = {name for rounds in took.values() for one in rounds for name in one if not name.startswith("_")}

    def per_page(rounds: list[Counter[str]], less: list[Counter[str]] | None, name: str) -> list[float]:
        of = [one[name] - (less[at][name] if less else 0) for at, one in enumerate(rounds)]
        return [1e3 * one / given.pages for one in of]

    def per_token(rounds: list[Counter[str]], less: list[Counter[str]], name: str) -> list[float]:
        return [
            1e6 * (a[name] - b[name]) / (a["_written"] - b["_written"])
            for a, b in zip(rounds, less, strict=True)
        ]

    def added(of: list[list[float]]) -> list[float]:
        return [sum(values) for values in zip(*of, strict=True)]

    columns = {
        "request, ms": {name: per_page(bare, None, name) for name in names},
        "its picture, ms": {name: per_page(page, bare, name) for name in names},
        "token, us": {name: per_token(long, page, name) for name in names},
        "with log-probability, us": {name: per_token(logged, page, name) for name in names},
    }
    order = sorted(names, key=lambda name: -sum(statistics.median(of[name]) for of in columns.values()))
    shown = [name for name in order if any(statistics.median(of[name]) >= _SHOWN for of in columns.values())]
    rows = [[name, *(spread(of[name], ".1f") for of in columns.values())] for name in shown]
    whole = {title: added(list(of.values())) for title, of in columns.items()}
    rows.append(["all", *(spread(of, ".1f") for of in whole.values())])
    title = f"{given.pages} pages in flight, {given.tokens} tokens, {given.rounds} rounds"
    return Report(
        tables=[Table(headings=("thread", *columns), rows=rows, title=title)],
        figures={name: statistics.median(of) for name, of in whole.items()},
    )


if __name__ == "__main__":
    main()
