"""`pecia engine` as an operator or a script runs it."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.shared.command import run_pecia

pytestmark = pytest.mark.gate


def engine(*words: str, **settings: str) -> CompletedProcess[str]:
    return run_pecia("engine", *words, env={"COLUMNS": "200", **settings})


def test_a_plan_shows_the_choice_the_arithmetic_and_the_budget_by_the_settings() -> None:
    done = engine("plan", "--gpu", "l4", "--quality")
    told = engine("plan", "--gpu", "l4", "--json", PECIA_STAGES="caption", PECIA_MAX_NUM_SEQS="5")

    assert done.returncode == 0, done.stderr
    for shown in (
        "Qwen/Qwen2.5-VL-7B-Instruct-AWQ  (awq, Apache-2.0)",
        "2 x 28 layers x 4 KV heads x 128 x 2 bytes = 57,344 bytes",
        "11.8 GiB = 20.2 GiB usable - 6.4 GiB of weights - 2.0 GiB in reserve",
        "221,040 tokens",
        "49 pages, 76 % of the KV cache",
        "49 <",
        "computed in FP8, which is twice as fast",
        "read as    Qwen-VL",
        "lightonai/LightOnOCR-2-1B",
    ):
        assert shown in done.stdout
    captions = json.loads(told.stdout)
    assert (captions["model"], captions["pages_at_a_time"]) == ("Qwen/Qwen3-VL-8B-Instruct-FP8", 5)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--gpu", "t4", "--model", "Qwen/Qwen3-VL-8B-Instruct"], 1, "it does not start"),
        (["--gpu", "h20"], 2, "Did you mean h200?"),
        (["--gpu", "cpu"], 2, "--model"),
    ],
)
def test_a_plan_that_cannot_be_says_so(words: list[str], code: int, sentence: str) -> None:
    done = engine("plan", *words)
    assert done.returncode == code
    assert sentence in " ".join((done.stdout + done.stderr).split())


def test_check_reads_a_page_with_the_engine_of_the_settings() -> None:
    done = engine("check", "--json", PECIA_ENGINE="rapidocr")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert (told["engine"], told["verdict"], told["ok"]) == ("rapidocr", "ok", True)
    assert told["accuracy"] > 0.95
    assert told["ready_s"] > 0


@pytest.mark.parametrize("name", ["tesseract", "vllm"])
def test_check_says_what_an_engine_lacks(name: str, tmp_path: Path) -> None:
    done = engine("check", PECIA_ENGINE=name, PECIA_PROFILE="cpu", PECIA_TESSDATA=str(tmp_path))
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert name in done.stderr
