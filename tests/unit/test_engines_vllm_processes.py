"""What vLLM's processes find in their environment."""

from __future__ import annotations

import os

import pytest

from pecia_workers.engines.vllm_processes import prepare_environment

SILENT = ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its own, empty."""
    monkeypatch.setattr(os, "environ", {})


def test_nothing_is_reported_to_anybody() -> None:
    prepare_environment("info")

    assert [os.environ[name] for name in SILENT] == ["1"] * len(SILENT)


def test_what_an_operator_has_set_stays() -> None:
    os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"

    prepare_environment("info")

    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
