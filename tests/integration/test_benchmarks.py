"""Benchmarks run on a tiny size and tell their table; what they find means nothing.

Left out are those that start a whole fleet, or many workers in turn: `make bench BENCH_SIZE=tiny` runs all.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import rounds
from harness.catalogue import CATALOGUE, Benchmark, Size
from harness.report import Report
from harness.servers import Servers
from pecia_workers.local.servers import EmbeddedPostgres
from tests.shared.ready_cluster import TEMPLATE

pytestmark = pytest.mark.gate

LONG = {"bundles", "lanes", "waiters", "memory", "cache", "tracing"}
FIRST_COLUMNS = {
    "rivals": ["Pecia", "Celery"],
    "rows": ["Pecia", "stock Celery"],
    "urgent": ["Pecia"],
    "recovery": ["Pecia"],
    "submit": ["stored", "pictures"],
    "depth": ["100"],
    "scale": [
        "claim 64 parts",
        "claim and commit 64 parts",
        "claim 64 without Redis",
        "relay 1000 parts",
        "look for orphans",
        "expire jobs",
        "compare with Redis",
        "measure",
        "retention: 500 documents",
        "retention: 500 results",
        "retention: 5,000 events",
        "retention: 500 jobs",
    ],
    "pdf": ["2"],
    "witness-stages": ["CPU engine", "witness of a true text", "of a wrong one"],
    "preparation": ["look", "blank", "orient", "deskew", "downscale"],
    "metrics": ["counting one part", "one scrape"],
    "webhooks": ["100 for 1", "100 for 100", "300 for 1", "300 for 2,000", "300 for 300"],
    "retention": ["retention alone", "workers alone", "both"],
}
WITHOUT_SERVERS = {"pdf", "preparation", "metrics"}
TINY = [one for one in CATALOGUE if Size.TINY in one.sizes and one.name not in LONG]


@pytest.fixture
def shared(
    session_postgres: EmbeddedPostgres, database_url: str, redis_url: str, short_path: Path
) -> Servers:
    """The session's servers, in place of those that a benchmark starts."""
    return Servers(
        database_url=database_url,
        template=TEMPLATE,
        redis_url=redis_url,
        payload_url=str(short_path / "payloads"),
        directory=short_path,
        postgres=session_postgres,
    )


@pytest.mark.parametrize(
    "benchmark", [one for one in TINY if one.name not in WITHOUT_SERVERS], ids=lambda one: one.name
)
def test_a_benchmark_on_servers_tells_what_it_found(
    benchmark: Benchmark, shared: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def servers(**_options: Any) -> Iterator[Servers]:
        yield shared

    script = importlib.import_module(benchmark.script.removesuffix(".py"))
    monkeypatch.setattr(sys, "argv", [benchmark.script, "--json", *benchmark.sizes[Size.TINY]])
    started_by = script if hasattr(script, "servers") else rounds
    monkeypatch.setattr(started_by, "servers", servers)

    script.main()

    check(benchmark, capsys.readouterr().out)


@pytest.mark.parametrize(
    "benchmark", [one for one in TINY if one.name in WITHOUT_SERVERS], ids=lambda one: one.name
)
def test_a_benchmark_without_servers_tells_what_it_found(benchmark: Benchmark) -> None:
    # A process of its own: one of them gives up what a decoding process gives up.
    command = [sys.executable, str(benchmark.path), "--json", *benchmark.sizes[Size.TINY]]
    check(benchmark, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def check(benchmark: Benchmark, printed: str) -> None:
    report = Report.of(json.loads(printed.splitlines()[-1]))
    (table,) = report.tables
    assert [row[0] for row in table.rows] == FIRST_COLUMNS[benchmark.name]
    assert all(len(row) == len(table.headings) for row in table.rows)
