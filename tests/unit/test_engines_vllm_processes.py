"""What vLLM's processes find in their environment."""

import os

import pytest

from pecia_workers.engines.vllm.processes import prepare_environment


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its own, empty."""
    monkeypatch.setattr(os, "environ", {})


def test_on_the_cpu_one_process_computes_and_leaves_us_a_core() -> None:
    prepare_environment("info", on_cpu=True)
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert int(os.environ["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) - 1)


def test_on_a_gpu_vllm_decides_about_its_processes_and_what_an_operator_has_set_stays() -> None:
    os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
    prepare_environment("info", on_cpu=False)
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_NUM_THREADS"} & os.environ.keys()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
