"""Measures a GPU machine in one short run: start, restart, throughput, an urgent page, two formats of weights.

A fleet with the product's own choice of sizes reads drawn A4 pages, beside offline `LLM.chat` with the same engine
arguments. The result of each measurement is written to the file of --output when it ends, so that a run that is cut
off leaves the earlier results; a step that fails leaves its error, and the next one runs. The steps, in the order of
--steps:

- `plan`: what `pecia engine plan` expects of this GPU, in pages/s;
- `chat`: `LLM.chat`, and its own time until it is ready;
- `fleet`: seconds until a fleet is `ready`, servers included; pages/s from submit to committed row; an `urgent` page
  alone, and behind many bulk pages, and how many of these were over before it; `restart`: `kill -9` of the engine's
  core under 64 pages, and seconds to the next committed page and to the last;
- `other`: `ready` and `fleet` with another format of weights, FP8 at load.

Without --model the model is Qwen2.5-VL-7B in its real sizes, as AWQ, with weights made up by vLLM: they cost what real
ones cost, and read nothing; so answers are drawn at temperature 1. `--reader` is a try without a GPU: the small model
that reads, on slips.

    python benchmarks/on_a_card.py --output card.json
    BENCH_FONTS=… python benchmarks/on_a_card.py --reader --pages 24 --behind 24 --killed 12 --output cpu.json

It runs in an environment with vLLM and `pecia[local]`, such as that of `make bench-engine`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from PIL import Image, ImageDraw, ImageFont

from harness.engines import CHECKPOINTS, READER, checkpoint, drawn_slips, run_side
from pecia_fleet import DONE_S, fleet_of, read, submit
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.commands.common import planned_engine
from pecia_workers.engines.models import visible_gpus
from pecia_workers.media.samples import sample_document
from pecia_workers.reading.page import instruction_for
from vllm_job import Answer, Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pecia import Client
    from pecia_workers.local.fleet import LocalFleet

_STEPS = ("plan", "chat", "fleet", "other")
WARM_UP = 8
ALONE = 3
SEED = 20261130
_TEXT = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
}
_VISION = {
    "depth": 32,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "window_size": 112,
}
_AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": ["visual"],
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}


def main() -> None:
    """Take the steps, and write down what came of each."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, required=True)
    made.add_argument("--model", help="a checkpoint's directory instead")
    made.add_argument("--other", type=json.loads, help="settings of the worker for the last step, as JSON")
    made.add_argument("--steps", nargs="+", choices=_STEPS, default=[*_STEPS])
    made.add_argument("--reader", action="store_true", help="the small model that reads, without a GPU")
    made.add_argument("--pages", type=int, default=320)
    made.add_argument("--behind", type=int, default=200, help="bulk pages before the urgent one")
    made.add_argument("--killed", type=int, default=64, help="pages under which the core is killed")
    arguments = made.parse_args()
    gpus = [gpu.name for gpu in visible_gpus()]
    figures: dict[str, Any] = {"machine": ", ".join(gpus) or "CPU", "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        directory = Path(scratch)
        directory.chmod(0o711)  # root's Postgres runs as another account
        drawn = list((_slips if arguments.reader else _documents)(directory, arguments))
        for step in arguments.steps:
            for name, found in _measured(step, arguments, directory, drawn):
                figures[name] = found
                arguments.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
                print(name, json.dumps(found), flush=True)


def _measured(
    step: str, arguments: argparse.Namespace, directory: Path, drawn: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the figures of a step by name, its error last if it fails."""
    job, other = _jobs(arguments, directory, drawn)
    try:
        if step == "plan":
            yield step, _plan(job)
        elif step == "chat":
            yield step, _figures(run_side("offline_chat.py", job, directory))
        elif step == "fleet":
            yield from _fleet(job, directory / step, arguments.behind, drawn[WARM_UP + arguments.pages :])
        else:
            yield from _other(other, directory / step)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the next step can still be measured
        yield f"{step} failed", repr(error)


def _plan(job: Job) -> dict[str, Any]:
    plan = planned_engine(job.settings, "")
    return {
        "at_a_time": plan.pages_at_a_time,
        "pages_per_s": {pace.pages: round(pace.pages_per_s, 2) for pace in plan.paces},
        "formats": {each.format: each.pace and round(each.pace.pages_per_s, 2) for each in plan.formats},
    }


def _fleet(job: Job, home: Path, behind: int, others: list[str]) -> Iterator[tuple[str, Any]]:
    started = time.monotonic()
    with fleet_of(job, home) as (fleet, client):
        yield "ready", {"s": _since(started)}
        yield "fleet", _figures(read(client, job))
        yield "urgent", _urgent(client, job, others[: behind + ALONE + 1])
        yield "restart", _restart(fleet, client, job, others[behind + ALONE + 1 :])


def _other(job: Job, home: Path) -> Iterator[tuple[str, Any]]:
    started = time.monotonic()
    with fleet_of(job, home) as (_, client):
        yield "other ready", {"s": _since(started)}
        yield "other", _figures(read(client, job))


def _jobs(arguments: argparse.Namespace, directory: Path, drawn: list[str]) -> tuple[Job, Job]:
    """Return the job, and the same with the other format."""
    worker: dict[str, Any]
    if arguments.reader:
        worker = {"max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 16}
        worker |= {"kv_cache_bytes": 1 << 28, "enforce_eager": True, "model": str(READER)}
        other = {}
    else:
        made = {"engine_options": {"load_format": "dummy"}, "cache_revision": "made up"}
        worker = {**made, "model": str(_real_sizes(directory / "awq", 6.93, {"quantization_config": _AWQ}))}
        other = {"model": str(_real_sizes(directory / "16-bit", 16.58)), "quantization": "fp8"}
    if arguments.model:
        worker["model"] = arguments.model
    job = Job(
        pages=drawn[WARM_UP : WARM_UP + arguments.pages],
        warm_up=drawn[:WARM_UP],
        instruction=instruction_for(DocumentType.PRESCRIPTION, None),
        most_tokens=400,
        log_probabilities=True,
        temperature=0 if arguments.reader else 1,
        worker=worker,
    )
    return job, replace(job, worker=worker | other | (arguments.other or {}))


def _count(arguments: argparse.Namespace) -> int:
    """Return how many pages there are: each is read once by a fleet, or its KV cache would know it."""
    return int(WARM_UP + arguments.pages + arguments.behind + ALONE + 1 + arguments.killed)


def _slips(directory: Path, arguments: argparse.Namespace) -> Iterator[str]:
    for number, slip in enumerate(drawn_slips(SEED, _count(arguments))):
        path = directory / f"{number}.png"
        Image.fromarray(slip.pixels).save(path)
        yield str(path)


def _documents(directory: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Draw A4 pages of 150 dots per inch, no two alike."""
    charts = [page.image for seed in range(8) for page in sample_document(DocumentType.CHART, seed).pages]
    for number in range(_count(arguments)):
        page = charts[number % len(charts)].copy()
        ImageDraw.Draw(page).text((120, 60), f"Sheet {number}", "black", ImageFont.load_default(24))
        path = directory / f"{number}.jpg"
        page.save(path, "JPEG", quality=90)
        yield str(path)


def _real_sizes(directory: Path, weights_gb: float, changes: dict[str, Any] | None = None) -> Path:
    """Return a checkpoint of Qwen2.5-VL-7B's sizes without weights, with the tokenizer of the tests' checkpoints."""
    checkpoint(CHECKPOINTS["tiny"], directory)
    for weights in directory.glob("*.safetensors*"):
        weights.unlink()
    with (directory / "none.safetensors").open("wb") as empty:  # its size is what a plan looks at
        empty.truncate(int(weights_gb * 1e9))
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    rope = {"mrope_section": [16, 24, 24], "rope_theta": 1000000.0, "rope_type": "default"}
    for name in ("rope_scaling", "rope_parameters"):
        if name in text:
            text[name] = rope
    text |= _TEXT | {"layer_types": ["full_attention"] * _TEXT["num_hidden_layers"]}
    text.pop("head_dim", None)
    config["vision_config"] |= _VISION
    file.write_text(json.dumps(config | (changes or {})), encoding="utf-8")
    picture = directory / "preprocessor_config.json"
    sizes = {"shortest_edge": 4 * 28 * 28, "longest_edge": 16384 * 28 * 28}
    picture.write_text(json.dumps(json.loads(picture.read_text(encoding="utf-8")) | {"size": sizes}))
    return directory


def _figures(answer: Answer) -> dict[str, Any]:
    pages = len(answer.output_tokens)
    return {
        "pages": pages,
        "pages_per_s": round(pages / answer.seconds, 2),
        "cpu_ms_a_page": round(1000 * answer.cpu_seconds / pages),
        "prompt_tokens": sum(answer.prompt_tokens),
        "output_tokens": sum(answer.output_tokens),
        "ready_s": answer.ready_seconds and round(answer.ready_seconds, 1),
    }


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


def _urgent(client: Client, job: Job, pages: Sequence[str]) -> dict[str, Any]:
    def read_urgent(page: str) -> float:
        began = time.monotonic()
        submit(client, job, [page], Lane.URGENT).wait(timeout=DONE_S)
        return _since(began)

    alone = [read_urgent(page) for page in pages[:ALONE]]
    bulk = submit(client, job, pages[ALONE + 1 :], Lane.BULK)
    next(bulk.as_completed(timeout=DONE_S))
    behind = read_urgent(pages[ALONE])
    over = sum(one.refresh().done for one in bulk)
    bulk.wait(timeout=DONE_S)
    return {"alone_s": statistics.median(alone), "behind": len(bulk), "s": behind, "bulk_over_before": over}


def _restart(fleet: LocalFleet, client: Client, job: Job, pages: Sequence[str]) -> dict[str, Any]:
    (worker,) = (psutil.Process(one.pid) for one in fleet.services() if one.name == "engine")
    (core,) = (one for one in worker.children(recursive=True) if "EngineCore" in " ".join(one.cmdline()))
    jobs = submit(client, job, pages)
    next(jobs.as_completed(timeout=DONE_S))
    core.kill()
    killed = datetime.now(UTC)
    jobs.wait(timeout=DONE_S)
    ended = [one.refresh().finished_at for one in jobs]
    after = sorted((end - killed).total_seconds() for end in ended if end and end > killed)
    states = Counter(str(one.state) for one in jobs)
    return {
        "pages": len(ended),
        "first_s": round(after[0], 1),
        "last_s": round(after[-1], 1),
        "states": states,
    }


if __name__ == "__main__":
    main()
