"""Names and labels of the metrics: by Prometheus' conventions, and never a word about a patient."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.states import Lane, Stage
from pecia_workers import metrics

DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"stage", "lane", "outcome", "code", "engine", "verdict", "step", "reason", "witness", "role", "gpu"}
UNITS = ("_seconds", "_bytes", "_ratio", "_total", "_info")


def collectors() -> Iterator[tuple[str, object]]:
    for registry, source in (
        (metrics.REGISTRY, "each"),
        (metrics.FLEET, "upkeep"),
        (metrics.GPUS, "engine"),
    ):
        for collector in registry._collector_to_names:
            yield source, collector


def families() -> Iterator[tuple[str, Metric, tuple[str, ...]]]:
    for source, collector in collectors():
        (family,) = collector.collect()  # type: ignore[attr-defined]
        yield source, family, tuple(collector._labelnames)  # type: ignore[attr-defined]


def shown(family: Metric) -> str:
    suffix = {"counter": "_total", "info": "_info"}
    return family.name + suffix.get(family.type, "")


def row(source: str, family: Metric, labels: tuple[str, ...]) -> str:
    listed = ", ".join(f"`{label}`" for label in labels)
    return f"| `{shown(family)}` | {family.type} | {listed} | {source} | {family.documentation} |"


@pytest.mark.parametrize("family", [family for _, family, _ in families()], ids=lambda family: family.name)
def test_a_name_tells_its_unit(family: Metric) -> None:
    name = shown(family)
    assert re.fullmatch(r"pecia_[a-z_]+", name)
    assert name.endswith(UNITS) or family.type == "gauge" or "parts" in name or "requests" in name
    assert family.documentation.endswith(".")


def test_labels_are_of_a_few_kinds_that_have_few_values() -> None:
    assert {label for _, _, labels in families() for label in labels} <= LABELS
    assert all(len(kind) < 40 for kind in (Stage, Lane, Verdict, FailureCode))


def test_the_page_lists_every_metric_as_it_is_declared() -> None:
    told = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith("| `pecia_")]
    assert told == [row(*declared) for declared in families()]
