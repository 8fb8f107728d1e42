"""`pecia simulate`, as it is typed."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from command import run_pecia
from pecia_workers.batching.policies import PolicyName
from pecia_workers.commands import common
from pecia_workers.engines.profiles import Speed, speed_toml
from pecia_workers.simulation.plots import _use_over_time
from pecia_workers.simulation.scenarios import simulated_seed


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
    assert "pecia[plot]" in result.stderr


def test_what_cannot_be_meant_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for words, said in (
        (("--mix", "novel"), "novel"),
        (("--mix", "chart=few"), "no weight"),
        (("--arrivals", str(tmp_path / "none")), "a file that can be read"),
        (("--kv-tokens", "1000", "--pages", "3"), "--kv-tokens"),
        (("--preset", "seed", "--seed", "7"), "--seed changes nothing"),
        (("--preset", "seed", "--kv-tokens", "70000"), "--kv-tokens changes nothing"),
        (("--speed", str(tmp_path / "none")), "cannot be read"),
    ):
        result = typed(*words)
        assert result.returncode == 2
        assert said in result.stderr


def test_a_measured_speed_is_what_the_engine_takes(tmp_path: Path) -> None:
    path = tmp_path / "speed.toml"
    path.write_text(speed_toml(Speed(base_s=0.08, prefill_token_s=0.0002, decode_sequence_s=0.001)))
    slow, fast = (
        json.loads(typed("--pages", "20", "--rate", "0.01", "--policy", "continuous", "--json", *more).stdout)
        for more in (("--speed", str(path)), ())
    )
    assert slow["service"]["mean"] == pytest.approx(10 * fast["service"]["mean"], rel=0.05)
