"""Metrics by Prometheus' conventions, and what ships for Prometheus and Grafana asks for those that there are."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric, ProcessCollector

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.states import Lane, Stage
from pecia_workers.observability import metrics
from tests.shared.command import ran

ROOT = Path(__file__).parents[2]
RULES = ROOT / "compose" / "prometheus" / "alerts.yml"
BOARDS = sorted((ROOT / "compose" / "grafana" / "dashboards").glob("*.json"))
RUNBOOK = ROOT / "docs" / "alerts.md"
PAGE = ROOT / "docs" / "metrics.md"
LABELS = {"stage", "lane", "outcome", "code", "engine", "verdict", "step", "reason", "witness", "role", "gpu"}
UNITS = ("_seconds", "_bytes", "_ratio", "_total", "_info")


def families() -> Iterator[tuple[str, Metric, tuple[str, ...]]]:
    registries = {"each": metrics.REGISTRY, "upkeep": metrics.FLEET, "engine": metrics.GPUS}
    for source, registry in registries.items():
        for collector in registry._collector_to_names:
            (family,) = collector.collect()
            yield source, family, tuple(collector._labelnames)  # type: ignore[attr-defined]


def shown(family: Metric) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


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
    told = [line for line in PAGE.read_text().splitlines() if line.startswith("| `pecia_")]
    assert told == [row(*declared) for declared in families()]


FUNCTIONS = {
    *("sum", "max", "min", "avg", "rate", "increase", "absent", "time", "histogram_quantile"),
    *("by", "and", "or"),
}
TARGET = {"instance", "job"}
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def exported() -> dict[str, set[str]]:
    """Return every time series that a process of the fleet can show, with its labels."""
    found: dict[str, set[str]] = {"up": TARGET}
    declared = [(family, labels) for _, family, labels in families()]
    for family, labels in [*declared, *((each, ()) for each in ProcessCollector(registry=None).collect())]:
        for suffix in SUFFIXES[family.type]:
            found[family.name + suffix] = {*labels, *TARGET} | ({"le"} if suffix == "_bucket" else set())
    return found


EXPORTED = exported()


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(board: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(board.read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for number, told in enumerate(re.findall(r"`([a-z_]+\([^`]*)`", PAGE.read_text())):
        yield f"page {number}", told
    for board in BOARDS:
        for panel in panels(board):
            for number, target in enumerate(panel.get("targets", [])):
                yield f"{panel['title']} {number}", target["expr"]


def names(expression: str) -> set[str]:
    """Return the words of an expression that are neither functions, labels, numbers nor times."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", expression)
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)) - FUNCTIONS


def labels(expression: str) -> set[str]:
    matchers = re.findall(r"\{([^}]*)\}", expression)
    asked = {label for matcher in matchers for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matcher)}
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    return asked | {label.strip() for group in grouped for label in group.split(",")}


@pytest.mark.parametrize(("name", "expression"), list(queries()), ids=[name for name, _ in queries()])
def test_a_query_asks_for_metrics_and_labels_that_there_are(name: str, expression: str) -> None:
    asked = names(expression)
    assert asked, name
    assert asked <= EXPORTED.keys()
    assert labels(expression) <= set().union(*(EXPORTED[metric] for metric in asked))


def test_what_an_engine_says_is_on_the_dashboard() -> None:
    targets = [target for board in BOARDS for panel in panels(board) for target in panel.get("targets", [])]
    shown = set().union(*(names(target["expr"]) for target in targets))
    engines = {name for name in EXPORTED if name.startswith("pecia_engine")}
    assert {name for name in engines - shown if not name.endswith(("_sum", "_count"))} == set()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_urgent_it_is_what_it_means_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert ROOT / page == RUNBOOK
    assert anchor == alert["alert"].lower()


def test_the_runbook_has_an_entry_from_symptom_to_fix_for_each_alert_and_no_other() -> None:
    parts = re.split(r"^## (\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert parts[1::2] == [alert["alert"] for alert in alerts()]
    for entry in parts[2::2]:
        told = re.findall(r"^- \*\*(\w+):\*\* ", entry, flags=re.MULTILINE)
        assert told == ["Symptom", "Check", "Cause", "Fix"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(arguments: tuple[str, ...]) -> None:
    told = ran("promtool", *arguments, cwd=RULES.parent)
    assert told.returncode == 0, told.stdout + told.stderr
