"""`pecia export`: the results of many jobs as files."""

from __future__ import annotations

from typing import Annotated

import typer

from pecia.cli import choosing, endings, following, output
from pecia.cli.endings import Ending
from pecia.client import Client
from pecia.exporting import ExportFormat

To = Annotated[str, typer.Option("--to", metavar="DIR", help="A folder, or s3://bucket/prefix.")]
Form = Annotated[ExportFormat, typer.Option("--format", help="Form of the files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def export(
    *,
    to: To,
    form: Form = ExportFormat.JSONL,
    batch: choosing.InBatch = None,
    state: choosing.States = None,
    verdict: choosing.Verdicts = None,
    metadata: choosing.Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Write the results of a batch, or of all jobs that a filter finds, to files with a manifest.

    What was written by an earlier run to the same place is not written again: repeat it after a break, or for jobs
    that were not over. Example: `pecia export --batch ward-7 --format parquet --to results/`
    """
    asked = choosing.which(batch, state, verdict, metadata)
    if not asked:
        raise typer.BadParameter(
            "say which jobs: by it, --state, --verdict or --metadata", param_hint="--batch"
        )
    try:
        with Client() as client, following.bar(sum(client.counts(**asked).states.values()), "jobs") as shown:
            done = client.export(to, format=form, progress=lambda far: shown(far.jobs), **asked)
    except KeyboardInterrupt:
        endings.complain("broken off: the same command goes on where it was.")
        raise typer.Exit(Ending.INTERRUPTED) from None
    if as_json:
        output.json_line(done.model_dump())
    else:
        typer.echo(
            f"{done.written:,} results written, {done.before:,} written before, {done.empty:,} jobs without a result."
        )
    if done.open:
        endings.complain(f"{done.open:,} jobs are not over: repeat the command when they are.")
    raise typer.Exit(Ending.FAILED if done.open or done.empty else Ending.DONE)
