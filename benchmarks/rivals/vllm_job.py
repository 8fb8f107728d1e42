"""What the three ways to read the same pages share: the job, the engine's settings, the answer. No vLLM here."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Job:
    """Pages to read with a model, and how; some others to warm up with."""

    model: str
    pages: list[str]
    warm_up: list[str]
    instruction: str
    most_tokens: int
    max_model_len: int = 2048
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    kv_cache_bytes: int
    load_format: str = "auto"

    @classmethod
    def of_command_line(cls) -> tuple[Self, Path]:
        """Return the job that the first argument names, and where the answer goes."""
        return cls(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])

    def write(self, path: Path) -> None:
        """Write it down for a program of this directory."""
        path.write_text(json.dumps(asdict(self)))

    @property
    def engine(self) -> dict[str, Any]:
        """Arguments of vLLM's own engine: the same for all."""
        return {
            "model": self.model,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "limit_mm_per_prompt": {"image": 1, "video": 0},
            "load_format": self.load_format,
            "enforce_eager": True,
        }


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one run came to."""

    seconds: float
    prompt_tokens: list[int]
    output_tokens: list[int]
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
