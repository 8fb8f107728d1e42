"""`pecia eval` and `pecia certify`: how well a fleet reads, and the error rate of accepted values."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from pydantic import ValidationError

from pecia import asking
from pecia.aio.connections import AsyncConnections
from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.cli.output import fitting
from pecia.cli.values import files_below, sniffed
from pecia.cli.watching import follow
from pecia.client import Client
from pecia.configuration import resolve
from pecia.errors import ConfigurationError, InvalidSettingError
from pecia.evaluation.certifying import Certificate, Rate, ReviewedValue, certificates, values_of
from pecia.evaluation.scores import Report, Summary, hand_over, report
from pecia.evaluation.truth import Exhibit, TruthError, exhibits, part_of_local
from pecia.job import JobGroup
from pecia.records import Listing
from pecia_schemas.settings import ClientSettings

_UNNAMED = "document"

Jobs = Annotated[
    list[UUID] | None,
    typer.Option("--job", metavar="ID", help="All pages of this job, in order; may be repeated."),
]
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only jobs submitted since: 30m, 2h, 7d or a date.")
]
Seed = Annotated[int, typer.Option(help="Of the sample: the same seed draws the same pages.")]


def certify(
    *,
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="How many pages are drawn.")] = 300,
    seed: Seed = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Draw from all pages that were read. Review the same ones before.")
    ] = False,
    bound: Annotated[
        float, typer.Option(min=0, max=1, help="Find the confidence from which on fewer values are wrong.")
    ] = 0.01,
    job: Jobs = None,
    metadata: values.OnlyWith = None,
    since: Since = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each type.")] = False,
) -> None:
    """Say from reviewed pages how often accepted values are wrong, by type of document, with bounds that hold.

    Pages are drawn at random, by the seed, from those that were checked whole (`w` in `pecia review`); with --all from
    all that were read, of which then each that is drawn must have been.

    Example: `pecia certify --all --sample 200 --seed 7`
    """
    pages, left = asyncio.run(
        _drawn(listing(metadata, since), job or (), sample, seed, everything=everything)
    )
    if left:
        endings.complain(
            f"{left:,} of the pages that are drawn were not checked whole yet: "
            f"`pecia review --sample {sample} --seed {seed}` shows them."
        )
        raise typer.Exit(Ending.FAILED)
    found = certificates(pages, bound=bound, seed=seed)
    if as_json:
        output.json_lines(found)
    else:
        heading = ("type", "values", "wrong", "rate, 95 %", f"rate <= {bound:.2%} from", "values there")
        typer.echo(fitting(heading, [_certified_row(one) for one in found], spare=("values there",)))


async def _drawn(
    listing: Listing, job_ids: Collection[UUID], sample: int, seed: int, *, everything: bool
) -> tuple[dict[str, list[Sequence[ReviewedValue]]], int]:
    """Return the values of the pages that are drawn, by type, and how many of these pages are to be checked yet."""
    connections = AsyncConnections(client_settings())
    try:
        drawn = await connections.reviews.sample(listing, job_ids, sample, seed, reviewed=not everything)
        found: dict[str, list[Sequence[ReviewedValue]]] = {}
        left = sum(not page.checked for page in drawn)
        for page in () if left else drawn:
            original, now = await connections.reviews.look(page.job_id, page.number)
            found.setdefault(page.document_type or _UNNAMED, []).append(values_of(original, now))
        return found, left
    finally:
        await connections.close()


def _certified_row(one: Certificate) -> tuple[str, ...]:
    above: Rate | None = one.above
    return (
        one.document_type,
        str(one.rate.values),
        str(one.rate.wrong),
        f"{one.rate.lower:.2%} - {one.rate.upper:.2%}",
        "-" if one.threshold is None else f"confidence {one.threshold}",
        f"{above.wrong} of {above.values} wrong" if above else "-",
    )


def listing(metadata: list[str] | None, since: str | None) -> Listing:
    """Return the jobs that the options mean, of all or of those that `--job` names."""
    return asking.listing({"metadata": values.metadata(metadata), "since": values.moment(since)})


def client_settings() -> ClientSettings:
    """Return how the stores are reached. Raises `ConfigurationError` if that is by a gateway."""
    settings = resolve(None, database_url=None, redis_url=None, payload_url=None)
    if settings.gateway_url:
        raise ConfigurationError("A review needs the fleet's stores: run it where PECIA_DATABASE_URL is set.")
    return settings


_COLUMNS = {
    "pages": "pages",
    "cer": "CER",
    "wer": "WER",
    "f1": "words F1",
    "numbers": "numbers",
    "errors_doubted": "errors doubted",
    "right_doubted": "right doubted",
    "coverage": "coverage",
    "cells": "cells",
    "order": "order",
    "cer_in_file": "CER in file",
    "order_in_file": "order in file",
    "marks": "marks",
    "wrong_ok": "wrong ok",
    "wrong_blank": "wrong blank",
    "seconds": "s/page",
}
_SPARE = (
    *("right doubted", "errors doubted", "order in file", "CER in file", "coverage", "WER", "wrong blank"),
    *("marks", "s/page"),
)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Files with their truth beside them: NAME.txt, NAME.json or NAME.csv; PDFs hold it themselves.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(help="Read with this engine on a throw-away fleet. Default: on the fleet that runs."),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="What --json printed earlier, to show what changed."
    ),
]
Of = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="What --json printed earlier: read nothing, and score those jobs as they are now, after a review.",
    ),
]


def evaluate(
    folder: Folder,
    *,
    engine: Engine = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: by kind, and page by page.")
    ] = False,
    against: Against = None,
    of: Of = None,
    timeout: values.Timeout = None,
) -> None:
    """Read files whose content is known, and show by kind of page how much is right.

    A PDF without a truth beside it is read from its pixels and compared with its own text: in the order in which its
    layout is read (CER, order), and in the order in which the file has it (CER in file, order in file).

    Without a fleet that runs, one is started for it and thrown away.

    Example: `pecia eval samples/ --json > today.json`
    """
    earlier = _earlier(against, "--against")
    read = _earlier(of, "--of").jobs if of else None
    shown = _exhibits(folder)
    with Client() if read is not None else _client(engine) as client:
        jobs = hand_over(client, shown) if read is None else _read(client, shown, read)
        follow(jobs, timeout)
        found = report(shown, jobs)
    if as_json:
        output.json_line(found.model_dump(mode="json"))
        return
    if found.pages:
        typer.echo(figures(found, earlier))
    for caption in found.captions:
        typer.echo(f"{caption.file}: ROUGE-L {caption.rouge_l:.3f}, METEOR {caption.meteor:.3f}")


def _exhibits(folder: Path) -> list[Exhibit]:
    files = ((path, media) for path in files_below(folder) if (media := sniffed(path)))
    try:
        shown = list(exhibits(folder, files))
    except TruthError as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from None
    if not shown:
        raise typer.BadParameter(f"nothing in '{folder}' has a truth beside it", param_hint="DIR")
    return shown


@contextmanager
def _client(engine: str | None) -> Iterator[Client]:
    """Yield a client of the fleet that runs, or of one that is started for the block."""
    with ExitStack() as stack:
        client = _of_running() if engine is None else None
        if client is None:
            throw_away = part_of_local("fleet", "A fleet of its own takes its servers along")
            fleet = stack.enter_context(throw_away(engine or "cpu", tell=partial(typer.echo, err=True)))
            client = Client(fleet.database_url, fleet.redis_url, fleet.payload_url)
        yield stack.enter_context(client)


def _of_running() -> Client | None:
    """Return a client of the fleet that is set, or else runs here; None if there is none."""
    try:
        return Client()
    except InvalidSettingError:
        raise
    except ConfigurationError:
        return None


def _read(client: Client, shown: list[Exhibit], read: dict[str, UUID]) -> JobGroup[Any]:
    """Return the jobs that have read these files."""
    if missing := [one.name for one in shown if one.name not in read]:
        raise typer.BadParameter(f"that run did not read '{missing[0]}'", param_hint="--of")
    return client.group([client.job(read[one.name]) for one in shown])


def _earlier(file: Path | None, option: str) -> Report:
    """Return what was found earlier; nothing without a file."""
    try:
        return Report.model_validate_json(file.read_bytes()) if file else Report()
    except ValidationError:
        raise typer.BadParameter(f"'{file}' is nothing that --json printed", param_hint=option) from None


def figures(found: Report, earlier: Report, width: int | None = None) -> str:
    """Return a run's figures by kind of page, beside those of an earlier one where they differ."""
    before = earlier.kinds
    rows = [[kind, *_row(summary, before.get(kind))] for kind, summary in found.kinds.items()]
    return fitting(("kind", *_COLUMNS.values()), rows, spare=_SPARE, width=width)


def _row(now: Summary, before: Summary | None) -> list[str]:
    """Return a kind's figures, with those of an earlier run before them if they differ."""
    shown = []
    for name in _COLUMNS:
        new, old = _figure(getattr(now, name)), _figure(getattr(before, name, None))
        shown.append(new if before is None or old == new else f"{old or '-'} → {new or '-'}")
    return shown


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
