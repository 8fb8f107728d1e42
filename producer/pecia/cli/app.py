"""The command line as a whole: the client's verbs, and those of the fleet behind them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from pecia.cli import backfill, captioning, dead, erasing, jobs, reading, results, watching, webhooks
from pecia.cli import usage as accounts
from pecia.cli.fleet import Verbs

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Hand documents to a fleet of readers, and get their text.

    Exit codes: 0 done, 1 a job failed, 2 usage or settings, 3 timeout, 4 something is unavailable.
    """
    if show_version:
        typer.echo(f"pecia {version('pecia')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("read")(reading.read)
app.command("caption")(captioning.caption)
app.command("backfill")(backfill.backfill)
app.command("status")(jobs.status)
app.command("wait")(jobs.wait)
app.command("result")(results.result)
app.command("watch")(watching.watch)
app.command("cancel")(jobs.cancel)
app.command("retry")(jobs.retry)
app.command("list")(jobs.list_jobs)
app.command("usage")(accounts.usage)
app.add_typer(dead.app, name="dead")
app.command("purge")(erasing.purge)
app.command("audit")(erasing.audit)
app.add_typer(webhooks.app, name="webhook")
