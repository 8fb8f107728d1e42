"""A whole fleet as Prometheus and a health check see it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pecia import Client, ReadDocument
from pecia_schemas.tasks import DocumentType
from tests.shared.fixture_types import Draw, Make, RunFleet
from tests.shared.limits import WAIT_S, eventually

pytestmark = pytest.mark.gate

WORD = "Quillfeather"
ROLES = {"ingest", "engine", "webhooks", "upkeep"}


def get(port: int, path: str) -> tuple[int, str]:
    """Return status and text; 0 where nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
    except (OSError, HTTPException):
        return 0, ""


class Pages:
    """The pages of a fleet's processes, and their logs."""

    def __init__(self, first_port: int, log: Callable[[str], Path]) -> None:
        self._ports = range(first_port, first_port + 16)
        self._log = log

    def lines(self, process: str) -> list[dict[str, Any]]:
        """Return what a process has logged; Celery's banner, which goes to stdout, is no line of JSON."""
        return [json.loads(line) for line in self.log(process).splitlines() if line.startswith("{")]

    def log(self, process: str) -> str:
        return self._log(process).read_text()

    def texts(self) -> list[str]:
        return [text for status, text in (get(port, "/metrics") for port in self._ports) if status == 200]

    def ports(self) -> list[int]:
        return [port for port in self._ports if get(port, "/healthz")[0]]

    def roles(self) -> set[str]:
        infos = self.samples("pecia_worker_info")
        return {labels["role"] for labels, _ in infos}

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [
            (sample.labels, sample.value)
            for text in self.texts()
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]

    def sum(self, name: str, **labels: str) -> float:
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())


@pytest.fixture(scope="module")
def seen(run_fleet: RunFleet) -> Iterator[tuple[Client, Pages]]:
    # Below those that the system hands out, above those of `free_port`.
    port = 20_000 + os.getpid() % 700 * 16
    with run_fleet("metrics", engine="simulated", metrics_port=port, log_format="json") as fleet:
        yield fleet.client, Pages(port, fleet.fleet.home.log)


def test_every_process_has_a_page_and_is_healthy_and_ready_and_upkeep_tells_how_the_fleet_stands(
    seen: tuple[Client, Pages],
) -> None:
    _, pages = seen
    eventually(lambda: pages.roles() == ROLES)
    by_port = [labels["role"] for labels, _ in pages.samples("pecia_worker_info")]
    assert by_port == ["ingest", "engine", "webhooks", "upkeep"], "each has the same port at every start"
    assert [get(port, "/healthz")[0] for port in pages.ports()] == [200] * 4
    eventually(lambda: [get(port, "/readyz")[0] for port in pages.ports()] == [200] * 4)
    eventually(lambda: pages.sum("pecia_workers_on_duty") == 4)
    assert pages.sum("pecia_measured_timestamp_seconds") > 1.7e9
    assert pages.sum("pecia_queue_parts") == 0


def test_work_is_seen_from_claim_to_callback_and_nothing_of_it_but_counts(
    seen: tuple[Client, Pages], drawn: Draw, open_receiver: Make
) -> None:
    client, pages = seen
    receiver = open_receiver()
    task = ReadDocument(drawn(WORD), document_type=DocumentType.PRESCRIPTION)
    jobs = [client.submit(task, webhook=receiver.url, metadata={"ward": WORD}) for _ in range(5)]
    for job in jobs:
        job.result(timeout=WAIT_S)
    failed = client.submit(ReadDocument(b"%PDF-1.7 " + WORD.encode()))
    with suppress(Exception):
        failed.result(timeout=WAIT_S)

    eventually(lambda: pages.sum("pecia_webhook_attempts_total", outcome="delivered") == 5)
    eventually(lambda: pages.sum("pecia_parts_total", stage="ingest", outcome="failed") == 1)
    eventually(lambda: pages.sum("pecia_parts_total", stage="read", outcome="done") == 5)
    eventually(lambda: pages.sum("pecia_parts_held") == 0)
    # The relay may publish a part once more that a slow client is about to publish.
    assert pages.sum("pecia_claimed_parts_total", stage="read") >= 5
    eventually(lambda: pages.sum("pecia_claim_parts_sum") == pages.sum("pecia_claimed_parts_total") >= 6)
    assert pages.sum("pecia_attempts_total", stage="read") == 5
    assert pages.sum("pecia_queue_seconds_count", stage="read") == 5
    assert pages.sum("pecia_failures_total") == 1
    assert pages.sum("pecia_pages_read_total", engine="simulated") == 5
    assert pages.sum("pecia_batch_requests_count") > 0
    assert pages.sum("pecia_engine_request_seconds_count", engine="simulated") == 5
    assert pages.sum("pecia_first_token_seconds_count", engine="simulated") == 5
    ledger = client.usage().total.tokens
    for name in ("prompt", "cached", "output", "wasted"):
        assert pages.sum(f"pecia_{name}_tokens_total") == getattr(ledger, name), name
    assert ledger.prompt > 0

    told = "".join(pages.texts())
    assert WORD not in told
    assert not [job.id for job in (*jobs, failed) if str(job.id) in told]

    assert not [text for text in pages.log("ingest").splitlines() if "Warning:" in text and text[0] != "{"]
    (line,) = eventually(lambda: [line for line in pages.lines("ingest") if line["event"] == "part_failed"])
    assert (line["job"], line["attempt"]) == (str(failed.id), 1)
    assert UUID(line["part"])
    assert not [process for process in ROLES if WORD in pages.log(process)]
