"""What an urgent page waits behind 2,000 bulk pages, and what bulk loses to it.

A whole fleet with the simulated engine, which takes the time of a language model that reads 32 prescriptions at a time.
2,000 bulk pages are handed over; once the engine is full the clock runs. Two ways, interleaved, each round with a fleet
of its own: bulk alone, and with an urgent page now and then. All is read from Postgres.

- wait: from submit to committed row, less the time in the engine: publishing, claim, decoding, room, commit;
- what is promised: at p95 no more than one service time, the median of a page in the engine, and 250 ms;
- bulk: output tokens per second of the pages that ended; with urgent pages, of what these leave.

Caveats. Engine time is simulated, everything else is real and shares the cores with it: on few cores the waits are
those of the machine. The engine is as fast with urgent pages as without, so bulk can only lose to the fleet.
"""

import argparse
import io
import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from PIL import Image, ImageDraw
from rich.console import Console
from rich.progress import Progress

from harness.report import Report, Table, parser, spread
from harness.servers import fleet
from pecia import Client, Document, DocumentType, Lane, ReadDocument
from pecia.job import JobGroup
from pecia_schemas.settings import WorkerSettings

FULL_S = 120
DONE_S = 120
LEEWAY_S = 0.25
"""What an urgent page may wait beyond one service time."""
WARM_UP = 64

_FINISHED = """
    SELECT lane, output_tokens, engine_s FROM parts
    WHERE state = 'done' AND finished_at > %s AND finished_at <= %s
"""

_WAITS = """
    SELECT extract(epoch FROM parts.finished_at - jobs.created_at)::float - parts.engine_s
    FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE jobs.lane = 'urgent' AND parts.state = 'done'
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run; times in seconds."""

    bulk_tokens_per_s: float
    urgent_tokens_per_s: float
    service_s: float
    """Median of a page in the engine."""
    waits_s: list[float]
    """Of each urgent page."""


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    made.add_argument("--bulk", type=int, default=2_000, help="bulk pages that wait when the clock starts")
    made.add_argument("--seconds", type=float, default=45, help="length of one run")
    made.add_argument("--every", type=float, default=0.5, help="mean seconds between two urgent pages")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    alone: list[Measured] = []
    mixed: list[Measured] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=2 * arguments.rounds)
        for number in range(arguments.rounds):
            for every, runs in ((0.0, alone), (arguments.every, mixed)):
                side = "with urgent pages" if every else "bulk alone"
                progress.update(task, description=f"round {number + 1}: {side}")
                runs.append(_measure(arguments, every, seed=number))
                progress.advance(task)
    _report(alone, mixed, arguments).tell(as_json=arguments.json)


def _measure(arguments: argparse.Namespace, every: float, *, seed: int) -> Measured:
    with ExitStack() as stack:
        settings = WorkerSettings(
            engine="simulated", stages="read", cache=False, flower_port=0, log_format="json"
        )
        at_work, client, _ = stack.enter_context(fleet(settings))
        url = at_work.settings.database_url.get_secret_value()
        database = stack.enter_context(psycopg.connect(url, autocommit=True))
        bulk = client.submit_many([_page(0)] * arguments.bulk, priority=Lane.BULK)
        _await_full(database)
        began = _now(database)
        if every:
            dice = random.Random(seed)  # noqa: S311  a workload, no secret
            urgent = _submit_now_and_then(client, arguments.seconds, every, dice)
        else:
            urgent = client.group([])
            time.sleep(arguments.seconds)
        ended = _now(database)
        urgent.wait(timeout=DONE_S)  # the last ones too, or those that wait long would not count
        measured = _read(database, began, ended)
        bulk.cancel()
    return measured


def _page(seed: int) -> ReadDocument:
    """Draw a small page that is not blank, another one for every seed."""
    page = Image.new("L", (224, 160), 255)
    ImageDraw.Draw(page).text((20, 60), f"Ward {seed}", fill=0, font_size=28)
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    return ReadDocument(buffer.getvalue(), document_type=DocumentType.PRESCRIPTION)


def _await_full(database: psycopg.Connection[Any]) -> None:
    """Return once the engine has been full for a while."""
    deadline = time.monotonic() + FULL_S
    while _one(database, "SELECT count(*) FROM parts WHERE state = 'done'") < WARM_UP:
        if time.monotonic() > deadline:
            message = "the engine worker reads nothing"
            raise TimeoutError(message)
        time.sleep(0.2)


def _submit_now_and_then(
    client: Client, seconds: float, every: float, dice: random.Random
) -> JobGroup[Document]:
    """Submit urgent pages at random moments, so that none keeps step with the engine."""
    page = _page(1)
    urgent = []
    end = time.monotonic() + seconds
    while (pause := dice.expovariate(1 / every)) < end - time.monotonic():
        time.sleep(pause)
        urgent.append(client.submit(page, priority=Lane.URGENT))
    time.sleep(max(0.0, end - time.monotonic()))
    return client.group(urgent)


def _read(database: psycopg.Connection[Any], began: Any, ended: Any) -> Measured:
    rows = database.execute(_FINISHED, (began, ended)).fetchall()
    seconds = (ended - began).total_seconds()
    tokens = {lane: sum(written for of, written, _ in rows if of == lane) for lane in Lane}
    return Measured(
        bulk_tokens_per_s=tokens[Lane.BULK] / seconds,
        urgent_tokens_per_s=tokens[Lane.URGENT] / seconds,
        service_s=statistics.median(engine_s for *_, engine_s in rows),
        waits_s=[wait for (wait,) in database.execute(_WAITS)],
    )


def _now(database: psycopg.Connection[Any]) -> Any:
    return _one(database, "SELECT clock_timestamp()")


def _one(database: psycopg.Connection[Any], statement: Any) -> Any:
    row = database.execute(statement).fetchone()
    assert row is not None  # noqa: S101  these statements return one row
    return row[0]


def _report(alone: list[Measured], mixed: list[Measured], arguments: argparse.Namespace) -> Report:
    kept = [
        with_urgent.bulk_tokens_per_s / (without.bulk_tokens_per_s - with_urgent.urgent_tokens_per_s)
        for without, with_urgent in zip(alone, mixed, strict=True)
    ]
    p95 = [statistics.quantiles(run.waits_s, n=20, method="inclusive")[-1] for run in mixed]
    limits = [run.service_s + LEEWAY_S for run in mixed]
    told = {
        "bulk": arguments.bulk,
        "seconds": arguments.seconds,
        "every": arguments.every,
        "urgent_wait_p95_s": p95,
        "allowed_s": limits,
        "bulk_kept": kept,
        "alone": [asdict(run) for run in alone],
        "mixed": [asdict(run) for run in mixed],
    }
    waits = [wait for run in mixed for wait in run.waits_s]
    rows = [
        ["urgent pages", str(len(waits))],
        ["wait of an urgent page, p50, s", _spread([statistics.median(run.waits_s) for run in mixed])],
        ["wait of an urgent page, p95, s", _spread(p95)],
        ["allowed: one service time + 250 ms, s", _spread(limits)],
        ["bulk alone, tokens/s", _spread([run.bulk_tokens_per_s for run in alone])],
        ["bulk beside urgent pages, tokens/s", _spread([run.bulk_tokens_per_s for run in mixed])],
        ["urgent pages, tokens/s", _spread([run.urgent_tokens_per_s for run in mixed])],
        ["bulk kept, of what they leave (allowed: 0.95)", _spread(kept)],
    ]
    title = (
        f"{arguments.bulk} bulk pages queued, an urgent one every {arguments.every:g} s, "
        f"{arguments.rounds} rounds of {arguments.seconds:g} s"
    )
    return Report(tables=[Table(headings=("", "rounds"), rows=rows, title=title)], figures=told)


def _spread(values: list[float]) -> str:
    return spread(values, ",.3f")


if __name__ == "__main__":
    main()
