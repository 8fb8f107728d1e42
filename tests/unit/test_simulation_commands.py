"""`pecia simulate` and `pecia experiment`, as they are typed."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from PIL import Image

from pecia_schemas.installing import install_command
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import PolicyName
from pecia_workers.commands import common
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.plots import _use_over_time
from pecia_workers.simulation.requests import Mix, drawn, poisson
from pecia_workers.simulation.scenarios import simulated_batches, simulated_seed
from tests.shared.command import run_pecia


def typed(*words: str) -> CompletedProcess[str]:
    return run_pecia("simulate", *words, env={"COLUMNS": "80"})


def test_the_preset_prints_the_figures_of_the_source() -> None:
    printed = typed("--preset", "seed").stdout
    for figure in ("170.73", "1.17", "6.829", "9.98", "41.2%", "75.92", "2.63", "2.812", "7.72", "92.6%"):
        assert figure in printed


def test_every_policy_at_every_rate_is_a_line_of_json() -> None:
    words = "--pages 20 --rate 1 --rate 8 --policy static --policy continuous --json"
    lines = [json.loads(line) for line in typed(*words.split()).stdout.splitlines()]

    assert [(line["policy"], line["rate"]) for line in lines] == [
        ("static", 1.0),
        ("continuous", 1.0),
        ("static", 8.0),
        ("continuous", 8.0),
    ]
    assert all(line["requests"] == 20 for line in lines)


def test_a_trace_file_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrived": 0, "output": 10}\n{"arrived": 1, "output": 20}\n')
    printed = typed("--arrivals", str(trace), "--policy", "continuous", "--json").stdout
    assert json.loads(printed)["requests"] == 2


def test_pictures_are_drawn_of_latency_and_use(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    words = "--pages 30 --rate 1 --rate 9 --policy continuous --plot"
    assert typed(*words.split(), str(folder)).returncode == 0
    assert {path.name for path in folder.iterdir()} == {"latency_throughput.png", "utilisation.png"}
    for path in folder.iterdir():
        with Image.open(path) as picture:
            assert len(set(picture.convert("L").tobytes())) > 2, "something is drawn"


def test_the_use_that_is_drawn_is_the_use_that_was() -> None:
    result = simulated_seed(PolicyName.STATIC)
    drawn = [share for _, share in _use_over_time(result)]
    assert sum(drawn) / len(drawn) == pytest.approx(result.figures.utilisation)


def test_without_what_draws_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(common, "find_spec", lambda _: None)
    result = typed("--preset", "seed", "--plot", str(tmp_path))
    assert result.returncode == 4
    assert install_command("plot") in result.stderr


def test_what_cannot_be_meant_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for words, said in (
        (("--mix", "novel"), "novel"),
        (("--mix", "chart=few"), "no weight"),
        (("--mix", "chart=nan"), "Weights are not negative"),
        (("--mix", "chart=inf"), "Weights are not negative"),
        (("--arrivals", str(tmp_path / "none")), "a file that can be read"),
        (("--kv-tokens", "1000", "--pages", "3"), "--kv-tokens"),
        (("--preset", "seed", "--seed", "7"), "--seed changes nothing"),
        (("--preset", "seed", "--kv-tokens", "70000"), "--kv-tokens changes nothing"),
        (("--gpu", str(tmp_path / "none.toml")), "cannot be read"),
    ):
        result = typed(*words)
        assert result.returncode == 2
        assert said in result.stderr


def test_the_engine_of_a_gpu_is_the_planned_one() -> None:
    words = ("--pages", "20", "--rate", "0.01", "--policy", "continuous", "--json")
    slow, fast = (json.loads(typed(*words, "--gpu", gpu).stdout)["service"]["mean"] for gpu in ("t4", "h200"))
    assert slow > 5 * fast


PRESCRIPTIONS = Mix(types={DocumentType.PRESCRIPTION: 1})


def told(*words: str) -> list[dict[str, Any]]:
    ran = run_pecia("experiment", *words, "--json")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_size_meets_every_window() -> None:
    cells = told("--pages", "20")
    assert [(cell["size"], cell["window"]) for cell in cells] == [
        (size, window) for size in (1, 4, 8) for window in (0, 0.01, 0.05)
    ]


def test_larger_batches_write_more_and_a_batch_of_one_does_not_wait() -> None:
    one, patient_one, eight = told(
        "--pages", "60", "--size", "1", "--size", "8", "--window", "0", "--window", "50"
    )[:3]
    assert eight["tokens_per_s"] > 2 * one["tokens_per_s"]
    assert patient_one == one | {"window": 0.05}


@pytest.mark.parametrize(
    ("rate", "window"), [(1_000, 0.05), (100, 0.01)], ids=["the size ends it", "the window ends it"]
)
def test_a_batch_waits_about_as_long_as_the_formula_says(rate: float, window: float) -> None:
    arriving = drawn(poisson(800, rate, 1), PRESCRIPTIONS, 1)
    roomy = IterationModel(
        max_num_seqs=10_000, kv_blocks=10_000_000, base_s=1e-5, prefill_token_s=0, decode_sequence_s=0
    )
    waiting = simulated_batches(arriving, roomy, size=8, window=window, concurrent=1_000).waiting.mean
    assert waiting == pytest.approx(min((8 - 1) / (2 * rate), window), rel=0.45)
    assert waiting <= window + 1e-4


def test_a_rate_too_small_to_show_has_no_gain() -> None:
    assert typed("--rate", "0.004", "--pages", "60").returncode == 0
