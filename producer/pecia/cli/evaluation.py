"""`pecia eval`: measures how well a fleet reads and captions files whose content is known."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError
from typer import Argument, BadParameter, Option

from pecia.cli import output, values
from pecia.cli.values import existing_file
from pecia.cli.watching import follow
from pecia.client import Client
from pecia.errors import ConfigurationError, InvalidSettingError
from pecia.evaluation.scores import Report, hand_over, report
from pecia.evaluation.truth import Exhibit, TruthError, exhibits, part_of_local
from pecia.sources import files_below, sniffed
from pecia_schemas.tasks import Prefer

_HEADINGS = {
    "cer": "CER",
    "wer": "WER",
    "f1": "words F1",
    "ok_with_wrong_number": "ok, number wrong",
    "right_but_flagged": "right, flagged",
    "cer_in_file": "CER in file",
    "seconds": "s/page",
    "recall": "cuts found",
    "precision": "cuts right",
    "whole": "right whole",
    "untold": "two patients untold",
}
"""Headings that differ from the figure's name."""
_SPARE = (
    *("destroyed", "numeric cells", "in place", "adjacency"),
    *("right doubted", "errors doubted", "order in file", "CER in file", "coverage", "WER", "wrong blank"),
    *("marks", "s/page", "values"),
)


def evaluate(
    folder: Annotated[
        Path,
        Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Files with the true content beside them: NAME.txt, NAME.json or NAME.csv; PDFs contain it.",
        ),
    ],
    *,
    engine: Annotated[
        str | None, Option(help="Engine to read with, on a throw-away fleet. Default: the running fleet.")
    ] = None,
    prefer: Annotated[
        Prefer | None,
        Option(
            help="Source of the text of PDFs. Default: pixels for PDFs that hold their own truth, else auto."
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object: by kind, and page by page.")
    ] = False,
    against: Annotated[
        Path | None, existing_file(help="Output of an earlier run with --json, to show what changed.")
    ] = None,
    of: Annotated[
        Path | None,
        existing_file(
            help="Output of an earlier run with --json: read nothing, score its jobs as they are now, after a review."
        ),
    ] = None,
    timeout: values.Timeout = None,
) -> None:
    """Read files whose content is known, and show how much is right, by kind of page.

    A PDF without a truth file beside it is read from its pixels and compared with its own text: in the reading order of
    its layout (CER, order), and in the order of the file (CER in file, order in file).

    If no fleet runs, one is started for the run and thrown away.

    Example: `pecia eval samples/ --json > today.json`
    """
    earlier = _earlier(against, "--against")
    read = _earlier(of, "--of").jobs if of else None
    shown = _exhibits(folder)
    with Client() if read is not None else _client(engine) as client:
        if read is None:
            jobs = hand_over(client, shown, prefer)
        elif missing := [one.name for one in shown if one.name not in read]:
            raise BadParameter(f"that run did not read '{missing[0]}'", param_hint="--of")
        else:
            jobs = client.group([client.job(read[one.name]) for one in shown])
        follow(jobs, timeout)
        found = report(shown, jobs)
    if as_json:
        output.json_line(found)
        return
    if found.pages:
        typer.echo(figures(found.kinds, earlier.kinds))
    if found.bundled:
        typer.echo(figures({"bundles": found.bundled}, {"bundles": earlier.bundled}))
    for caption in found.captions:
        typer.echo(f"{caption.file}: ROUGE-L {caption.rouge_l:.3f}, METEOR {caption.meteor:.3f}")


def _exhibits(folder: Path) -> list[Exhibit]:
    files = ((path, media) for path in files_below(folder) if (media := sniffed(path)))
    try:
        shown = list(exhibits(folder, files))
    except TruthError as error:
        raise BadParameter(str(error), param_hint="DIR") from None
    if not shown:
        raise BadParameter(
            f"nothing in '{folder}' has a truth beside it: write NAME.txt or NAME.json beside each file "
            "(docs/evaluation.md)",
            param_hint="DIR",
        )
    return shown


@contextmanager
def _client(engine: str | None) -> Iterator[Client]:
    """Yield a client of the configured or local fleet, or of a fleet that is started for the block."""
    client = None
    try:
        client = Client() if engine is None else None
    except InvalidSettingError:
        raise
    except ConfigurationError:
        pass  # no fleet is set, and none runs here
    with ExitStack() as stack:
        if client is None:
            throw_away = part_of_local("fleet", "A fleet of its own takes its servers along")
            fleet = stack.enter_context(throw_away(engine or "cpu", report=partial(typer.echo, err=True)))
            client = Client(fleet.database_url, fleet.redis_url, fleet.payload_url)
        yield stack.enter_context(client)


def _earlier(file: Path | None, option: str) -> Report:
    """Return the earlier report, or an empty one without a file."""
    try:
        return Report.model_validate_json(file.read_bytes()) if file else Report()
    except ValidationError:
        raise BadParameter(f"'{file}' is not the output of --json", param_hint=option) from None


def figures(
    found: Mapping[str, BaseModel],
    earlier: Mapping[str, BaseModel | None],
    width: int | None = None,
) -> str:
    """Return a run's figures by kind of page, or of bundles, beside differing figures of an earlier run."""
    names = type(next(iter(found.values()))).model_fields
    rows: list[list[str]] = []
    for kind, now in found.items():
        rows.append([kind])
        before = earlier.get(kind)
        for name in names:
            new, old = _figure(getattr(now, name)), _figure(getattr(before, name, None))
            rows[-1].append(new if before is None or old == new else f"{old or '-'} → {new or '-'}")
    headings = (_HEADINGS.get(name, name.replace("_", " ")) for name in names)
    return output.fitting(("kind", *headings), rows, spare=_SPARE, width=width)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
