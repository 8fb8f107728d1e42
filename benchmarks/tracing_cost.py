"""What traces cost: the way from claim to committed row without them, with them, and with a collector that is away.

The engine answers at once, so that spans weigh most: a real page takes seconds. Every job is traced. Rounds are
interleaved, so that a busy machine hits all sides.
"""

import argparse
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from sqlalchemy import text

from claim_to_commit import COST, Measured, Stores, fill, measure, opened
from harness.report import Report, Table, parser, spread
from pecia_schemas.messages import PartMessage, publish
from pecia_schemas.states import Lane, Stage

_TRACE = text(
    """
    UPDATE jobs SET traceparent = '00-' || md5(CAST(id AS text)) || '-' || substr(md5('span' || id), 1, 16) || '-01'
    """
)
_TRACES = text("SELECT parts.id, jobs.traceparent FROM parts JOIN jobs ON jobs.id = parts.job_id")
_AWAY = "http://127.0.0.1:9"


class _Taking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""


def main() -> None:
    """Run the rounds and print the medians and their ratios."""
    made = parser(__doc__)
    made.add_argument("--parts", type=int, default=4_000)
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    with opened() as stores, _collector() as url:
        sides: dict[str, dict[str, str]] = {
            "without": {},
            "with": {"PECIA_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            "with, collector away": {"PECIA_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": _AWAY},
        }
        results: dict[str, list[Measured]] = {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, environment in sides.items():
                results[side].append(_measured(stores, environment, arguments.parts))
    _report(results, arguments).tell(as_json=arguments.json)


@contextmanager
def _collector() -> Iterator[str]:
    """Run what takes spans and forgets them; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _measured(stores: Stores, environment: dict[str, str], count: int) -> Measured:
    fill(stores, count)
    with stores.database.begin() as connection:
        connection.execute(_TRACE)
        traces: dict[UUID, str] = {row.id: row.traceparent for row in connection.execute(_TRACES)}
    publish(
        stores.redis,
        [
            PartMessage(
                part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=COST, flow=part, traceparent=traceparent
            )
            for part, traceparent in traces.items()
        ],
    )
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return measure(stores, "pecia_worker.py", count)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _report(results: dict[str, list[Measured]], arguments: argparse.Namespace) -> Report:
    bare = results["without"]
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for side, rounds in results.items():
        ratios = [one.parts_per_s / other.parts_per_s for one, other in zip(rounds, bare, strict=True)]
        cpu = [one.cpu_s_per_thousand for one in rounds]
        rows.append(
            [
                side,
                spread([one.parts_per_s for one in rounds]),
                spread(ratios, ".2f"),
                spread(cpu, ".3f"),
            ]
        )
        figures[side] = {"parts_per_s": [one.parts_per_s for one in rounds], "ratios": ratios, "cpu": cpu}
    table = Table(
        headings=("", "parts/s", "to without", "worker CPU s per 1,000 parts"),
        rows=rows,
        title=f"{arguments.parts:,} parts, {arguments.rounds} rounds",
    )
    return Report(tables=[table], figures=figures)


if __name__ == "__main__":
    main()
