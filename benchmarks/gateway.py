"""How soon the gateway says how a job is, to 200 clients at once, beside a fleet at work.

A whole fleet with the simulated engine, and its gateway, one process. Each client has a connection of its own that it
keeps; it submits a picture and asks for its state every second until it is read, then submits the next. All share one
key.

- status: from the request's first byte to the answer's last, as the client measures it;
- error: an answer that is none of 200 and 201, or a connection that broke.

Caveats. Clients, gateway, stores and fleet share the cores. The clients are asyncio streams in one process: what they
cost is in the figures. Without TLS, and without a proxy.
"""

import argparse
import asyncio
import io
import json
import os
import random
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from harness.report import Report, Table, parser
from harness.servers import fleet
from pecia.accounts import Scope
from pecia.configuration import resolve
from pecia.connections import Connections
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane

BOUNDARY = "pecia-bench"


@dataclass
class Load:
    """What the clients have seen."""

    status_s: list[float] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    read: int = 0


def main() -> None:
    """Run it and print what came of it."""
    made = parser(__doc__)
    made.add_argument("--clients", type=int, default=200)
    made.add_argument("--seconds", type=float, default=60)
    made.add_argument("--every", type=float, default=1.0, help="seconds between two looks of a client")
    arguments = made.parse_args()
    settings = WorkerSettings(
        engine="simulated", flower_port=0, gateway_port=_free_port(), gateway_rate=100_000, cache=False
    )
    with fleet(settings, gateway=True) as (at_work, _, _):
        key = _key(at_work.settings)
        load = asyncio.run(_load(at_work.settings.gateway_port, key, arguments))
    _report(load, arguments).tell(as_json=arguments.json)


def _key(settings: WorkerSettings) -> str:
    url, redis = settings.database_url.get_secret_value(), settings.redis_url.get_secret_value()
    connections = Connections(
        resolve(None, database_url=url, redis_url=redis, payload_url=settings.payload_url)
    )
    _, shown = connections.access.add(
        tenant="bench", name="bench", scopes=tuple(Scope), lanes=tuple(Lane),
        pages_per_day=None, pages_in_flight=None, expires_at=None,
    )  # fmt: skip
    connections.close()
    return shown


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def _load(port: int, key: str, arguments: argparse.Namespace) -> Load:
    load = Load()
    until = time.monotonic() + arguments.seconds

    async def client(number: int) -> None:
        await asyncio.sleep(random.uniform(0, arguments.every))  # noqa: S311  a workload, no secret
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await _work(_Asker(reader, writer, key), number, until, arguments.every, load)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            load.errors[f"{type(error).__name__}: {error}"] += 1
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(arguments.clients):
            group.create_task(client(number))
    return load


@dataclass
class _Asker:
    """One client, with a connection that it keeps."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: str

    async def ask(self, line: str, body: bytes, took: list[float]) -> Any:
        began = time.monotonic()
        head = (
            f"{line} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        told = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = told.decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines if line)
        answer = json.loads(await self.reader.readexactly(int(fields["content-length"])))
        took.append(time.monotonic() - began)
        if status.split()[1] not in ("200", "201"):
            raise ValueError(f"{status} {answer['code']}")
        return answer


async def _work(asker: _Asker, number: int, until: float, every: float, load: Load) -> None:
    while time.monotonic() < until:
        job = (await asker.ask("POST /v1/jobs", _form(number), load.submit_s))["jobs"][0]
        while time.monotonic() < until and job["state"] in ("queued", "running"):
            await asyncio.sleep(every)
            job = await asker.ask(f"GET /v1/jobs/{job['id']}", b"", load.status_s)
        load.read += job["state"] == "succeeded"


def _form(number: int) -> bytes:
    """Return a picture as the part of a form."""
    drawn = io.BytesIO()
    Image.effect_noise((200, 200), 50 + number % 50).save(drawn, "PNG")
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
    return head.encode() + drawn.getvalue() + f"\r\n--{BOUNDARY}--\r\n".encode()


def _report(load: Load, arguments: argparse.Namespace) -> Report:
    rows = [
        [name, f"{len(took):,}", *(f"{1000 * _at(took, share):.0f}" for share in (0.5, 0.95, 0.99, 1.0))]
        for name, took in (("status", load.status_s), ("submit", load.submit_s))
    ]
    table = Table(headings=["request", "answers", "p50 ms", "p95 ms", "p99 ms", "longest ms"], rows=rows)
    what = f"{arguments.clients} clients, {arguments.seconds:g} s, {load.errors.total()} errors, {load.read:,} pages"
    machine = f"load of the machine at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    notes = [f"{what}; {machine}."]
    notes += [f"{count}: {error}" for error, count in load.errors.most_common()]
    return Report(tables=[table], notes=notes)


def _at(took: list[float], share: float) -> float:
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


if __name__ == "__main__":
    main()
