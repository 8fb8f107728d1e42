"""`python -m tests.soak.growth`: see whether a process of a fleet at work, or of its clients, grows with its jobs.

A whole fleet with the simulated engine, its gateway and Flower; a blocking client, one for asyncio and one through the
gateway, each a process that lives as long as the fleet. After every step the memory that is theirs alone, their
descriptors, threads and processes are counted, of each worker with what it has forked. Exits with 0 only if none of
these rises with the jobs once the fleet is warm.
"""

import argparse
import asyncio
import io
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
from PIL import Image, ImageDraw
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from pecia import AsyncClient, Client, ClientSettings, Job, ReadDocument
from pecia.accounts import Scope
from pecia.configuration import resolve
from pecia.connections import Connections
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.home import ScratchDirectory
from tests.shared.http_doubles import free_port
from tests.soak.receiver import Receiver

_SECRET = "whsec_" + "dGhlIHNlY3JldCBvZiB0aGUgc29hayB0ZXN0LCAyNA=="
_CLIENTS = ("blocking", "asyncio", "gateway")
_IN_FLIGHT = 8
"""Jobs of one client at a time."""
_PDF_EVERY, _CALLBACK_EVERY, _EVENTS_EVERY = 10, 5, 4
_SETTLE_S = 3.0
"""In which callbacks arrive, and processes free what they free with a delay."""
_WARM_UP = 0.2
"""Share of the steps after which every cache and pool is as full as it gets."""
_BYTES_A_JOB = 2_000
_OTHERS = 8
"""Most descriptors, threads or processes that may come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Resources of a process and of those that it has forked."""

    memory: int
    """Bytes that are shared with no other process."""
    descriptors: int
    threads: int
    processes: int


def document(number: int) -> bytes:
    """Return a small document like no other: a picture, or now and then a PDF of two pages."""
    pages, file = [], io.BytesIO()
    for page in range(1 if number % _PDF_EVERY else 2):
        pages.append(Image.new("L", (320, 64), "white"))
        ImageDraw.Draw(pages[page]).text((8, 20), f"document {number} page {page}", fill="black")
    if len(pages) > 1:
        pages[0].save(file, "PDF", save_all=True, append_images=pages[1:])
    else:
        pages[0].save(file, "PNG")
    return file.getvalue()


def _groups(numbers: range) -> Iterator[range]:
    return (numbers[start : start + _IN_FLIGHT] for start in range(0, len(numbers), _IN_FLIGHT))


def _options(number: int, webhook: str) -> dict[str, Any]:
    return {} if number % _CALLBACK_EVERY else {"webhook": webhook}


def _process(client: Client, numbers: range, webhook: str) -> None:
    """Have these documents read: submit, wait, follow the events of some, take the results."""

    def finish(number: int, job: Job[Any]) -> None:
        if number % _EVENTS_EVERY == 0 and not list(job.events()):
            raise RuntimeError("a job without events")
        if not job.wait().result().pages:
            raise RuntimeError("a job without pages")

    for group in _groups(numbers):
        jobs = [client.submit(ReadDocument(document(n)), **_options(n, webhook)) for n in group]
        for number, job in zip(group, jobs, strict=True):
            finish(number, job)


async def _process_async(client: AsyncClient, numbers: range, webhook: str) -> None:
    async def process(number: int) -> None:
        job = await client.submit(ReadDocument(document(number)), **_options(number, webhook))
        if number % _EVENTS_EVERY == 0 and not [event async for event in job.events()]:
            raise RuntimeError("a job without events")
        await job.wait()
        if not (await job.result()).pages:
            raise RuntimeError("a job without pages")

    for group in _groups(numbers):
        await asyncio.gather(*(process(number) for number in group))


def run_client(kind: str, settings: ClientSettings, webhook: str, orders: Connection) -> None:
    """Process ranges of documents as they are ordered, until there is no further order. A process of its own."""
    if kind != "asyncio":
        with Client(settings=settings) as client:
            while (numbers := orders.recv()) is not None:
                _process(client, numbers, webhook)
                orders.send(len(numbers))
        return

    async def run() -> None:
        async with AsyncClient(settings=settings) as client:
            while (numbers := await asyncio.to_thread(orders.recv)) is not None:
                await _process_async(client, numbers, webhook)
                orders.send(len(numbers))

    asyncio.run(run())


@contextmanager
def _clients(fleet: LocalFleet, key: str, webhook: str) -> Iterator[dict[str, tuple[int, Connection]]]:
    """Run one process for each kind of client; yield its id, and where its orders go."""
    of, processes = fleet.settings, multiprocessing.get_context("spawn")
    stores = ClientSettings().with_stores(
        database_url=of.database_url.get_secret_value(),
        redis_url=of.redis_url.get_secret_value(),
        payload_url=of.payload_url,
    )
    gateway = ClientSettings(gateway_url=fleet.gateway or "", api_key=SecretStr(key))
    with ExitStack() as stack:
        clients = {}
        for kind in _CLIENTS:
            near, far = processes.Pipe()
            settings = gateway if kind == "gateway" else stores
            process = processes.Process(target=run_client, args=(kind, settings, webhook, far), daemon=True)
            process.start()
            far.close()
            stack.callback(process.join, 30)
            stack.callback(near.send, None)
            clients[f"client: {kind}"] = process.pid or 0, near
        yield clients


def sample(session: int) -> Sample:
    """Return what the processes of a session hold: a worker and all that it has forked are one."""
    memory = descriptors = threads = processes = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):  # it has ended meanwhile
            if process.pid == session or os.getsid(process.pid) == session:
                memory += process.memory_full_info().uss
                descriptors += process.num_fds()
                threads += process.num_threads()
                processes += 1
    return Sample(memory=memory, descriptors=descriptors, threads=threads, processes=processes)


def growth(jobs: Sequence[int], samples: Sequence[Sample]) -> tuple[float, list[str]]:
    """Return by how many bytes the least memory rises with each job, and what rises more than it may.

    The least of either half of the warm steps: what is garbage at one moment, and gone at the next, is no growth.
    """
    warm = int(len(samples) * _WARM_UP)
    middle = (warm + len(samples)) // 2
    early, late = samples[warm:middle], samples[middle:]
    risen = min(each.memory for each in late) - min(each.memory for each in early)
    slope = risen / (jobs[middle] - jobs[warm])
    complaints = [f"memory: {slope:,.0f} bytes more with each job"] if slope > _BYTES_A_JOB else []
    for name in ("descriptors", "threads", "processes"):
        before, after = (max(getattr(each, name) for each in half) for half in (early, late))
        if after > before + _OTHERS:
            complaints.append(f"{name}: {after}, {before} before")
    return slope, complaints


def measure(jobs: int, step: int, console: Console) -> tuple[list[int], dict[str, list[Sample]]]:
    """Run a fleet and its clients; return the jobs processed at each step, and the samples of each process."""
    with ExitStack() as stack:
        scratch = ScratchDirectory.create()
        stack.callback(scratch.remove)
        scratch.path.chmod(0o711)  # root's Postgres runs as another account
        receiver = stack.enter_context(Receiver(secret=_SECRET, seed=0))
        fleet = stack.enter_context(
            LocalFleet(scratch.path / "fleet", settings=_settings(), announce=False, gateway=True)
        )
        fleet.wait_ready()
        clients = stack.enter_context(_clients(fleet, _key(fleet.settings), receiver.url))
        done, steps = 0, []
        seen: dict[str, list[Sample]] = {}
        while done < jobs:
            share = step // len(clients)
            for number, (_, orders) in enumerate(clients.values()):
                orders.send(range(done + number * share, done + (number + 1) * share))
            done += sum(orders.recv() for _, orders in clients.values())
            time.sleep(_SETTLE_S)
            steps.append(done)
            sessions = {each.name: each.pid for each in fleet.services() if each.pid}
            sessions |= {name: pid for name, (pid, _) in clients.items()}
            for name, pid in sessions.items():
                seen.setdefault(name, []).append(sample(pid))
            console.print(f"{done} jobs")
        return steps, seen


def _settings() -> WorkerSettings:
    given: dict[str, Any] = {
        "engine": "simulated:instant",
        "engine_processes": 1,
        "decode_processes": 1,
        "cache": False,
        "webhook_secret": SecretStr(_SECRET),
        "webhook_allow": ("127.0.0.0/8",),
        "webhook_ports": (),
        "webhook_listener": 0,
        "flower_port": free_port(),
        "flower_max_tasks": 500,  # or it is still filling up in the end
        "gateway_port": free_port(),
        "gateway_rate": 100_000,
    }
    return WorkerSettings(**given)


def _key(settings: WorkerSettings) -> str:
    url, redis = settings.database_url.get_secret_value(), settings.redis_url.get_secret_value()
    connections = Connections(
        resolve(None, database_url=url, redis_url=redis, payload_url=settings.payload_url)
    )
    _, shown = connections.access.add(
        tenant="growth", name="growth", scopes=tuple(Scope), lanes=tuple(Lane),
        pages_per_day=None, pages_in_flight=None, expires_at=None,
    )  # fmt: skip
    connections.close()
    return shown


def report(steps: Sequence[int], seen: Mapping[str, Sequence[Sample]], console: Console) -> bool:
    """Print a table of all processes; return whether none of them grows."""
    table = Table("process", "MiB", "bytes a job", "descriptors", "threads", "processes", "verdict")
    kept = True
    for name, samples in seen.items():
        slope, complaints = growth(steps, samples)
        kept &= not complaints
        table.add_row(
            name,
            " ".join(f"{each.memory / 2**20:.1f}" for each in samples),
            f"{slope:,.0f}",
            *(
                f"{min(numbers)} … {max(numbers)}"
                for of in ("descriptors", "threads", "processes")
                if (numbers := [getattr(each, of) for each in samples])
            ),
            "; ".join(complaints) or "stays",
        )
    console.print(table)
    return kept


def main() -> None:
    """Run it and say what grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.growth", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000, help="in all (default: %(default)s)")
    parser.add_argument("--step", type=int, default=500, help="between two samples (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object beside the table")
    arguments = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("PECIA_")]:
        del os.environ[name]
    errors = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 180)
    steps, seen = measure(arguments.jobs, arguments.step, errors)
    kept = report(steps, seen, errors)
    if arguments.json:
        samples = {name: [asdict(each) for each in of] for name, of in seen.items()}
        print(json.dumps({"jobs": steps, "samples": samples, "kept": kept}))  # noqa: T201  what was asked for
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
