"""What the three ways to read the same pages share: the job, the engine's arguments, the answer. No vLLM here."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import psutil

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.profiles import with_profile
from pecia_workers.engines.vllm.processes import engine_arguments


@dataclass(frozen=True, kw_only=True)
class Job:
    """Pages to read with a model, and how; some others to warm up with."""

    pages: list[str]
    warm_up: list[str]
    instruction: str
    most_tokens: int
    log_probabilities: bool
    temperature: float = 0
    worker: dict[str, Any]
    """Settings of the fleet's engine worker, the model among them. Those who have no fleet take the same engine's."""

    @classmethod
    def of_command_line(cls) -> tuple[Self, Path]:
        """Return the job that the first argument names, and where the answer goes."""
        return cls(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])

    def write(self, path: Path) -> None:
        """Write it down for a program of this directory."""
        path.write_text(json.dumps(asdict(self)))

    @property
    def settings(self) -> WorkerSettings:
        """The worker's settings: no reading but the engine's, for the others have no other either."""
        return WorkerSettings(
            engine="vllm",
            max_output_tokens=self.most_tokens,
            log_probabilities=self.log_probabilities,
            max_readings=1,
            witness="none",
            cache=False,
            flower_port=0,
            log_format="json",
            **self.worker,
        )

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's engine, as the fleet's worker would give them."""
        chosen = with_profile(self.settings)
        return {"model": chosen.model, **engine_arguments(chosen, chosen.engine_options)}


@dataclass(kw_only=True)
class Clock:
    """Seconds of a block, and of the cores meanwhile."""

    seconds: float = 0
    cpu_seconds: float = 0


@contextmanager
def timed() -> Iterator[Clock]:
    """Time the block: on the wall, and of this process and all below it that live through the block."""
    clock, started, before = Clock(), perf_counter(), _cpu_seconds()
    yield clock
    clock.seconds = perf_counter() - started
    after = _cpu_seconds()
    clock.cpu_seconds = sum(after[pid] - before.get(pid, 0) for pid in after)


def _cpu_seconds() -> dict[int, float]:
    this, seconds = psutil.Process(), {}
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
    return seconds


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one run came to."""

    seconds: float
    cpu_seconds: float
    prompt_tokens: list[int]
    output_tokens: list[int]
    ready_seconds: float | None = None
    """From the start of the program to an engine that takes requests."""
    packing: float | None = None
    """Share of the KV cache in use while pages waited."""
    preemptions: int | None = None
    drifted: int | None = None

    def write(self, path: Path) -> None:
        """Write it down for the program that asked."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a program wrote."""
        return cls(**json.loads(path.read_text()))


def data_url(page: str) -> str:
    """Return a page as OpenAI's API takes it."""
    return "data:image/png;base64," + base64.b64encode(Path(page).read_bytes()).decode()
