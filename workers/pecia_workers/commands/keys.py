"""`pecia keys`: make a key, count what each key wraps, and rewrap everything under the current key.

Rotation processes a few thousand rows at a time. It can be interrupted and repeated at any time: data keys under the
current key are skipped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import explain, verdict_on
from pecia_schemas.encryption import SETTING, Keyring, checked_key_id, new_key
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands import common
from pecia_workers.ledger import rekeying
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_database

R = TypeVar("R")

keys = typer.Typer(no_args_is_help=True)


@keys.command()
def new(name: Annotated[str, typer.Argument(help="What to call it. Default: today's date.")] = "") -> None:
    """Print a new key for PECIA_ENCRYPTION_KEYS. It is stored nowhere: without it the documents are lost.

    Example: `pecia keys new`
    """
    called = name or datetime.now(UTC).date().isoformat()
    try:
        checked_key_id(called)
    except ValueError as error:
        raise common.refused(f"{SETTING} {error}", common.USAGE) from None
    if called in common.settings_or_exit().keyring:
        raise common.refused(
            f"There is a key {called!r} already: give the new one another name.", common.USAGE
        )
    typer.echo(json.dumps({called: new_key()}))


@keys.command()
def status(*, as_json: common.AsJson = False) -> None:
    """Count the data keys that each key wraps. Exit 1 if PECIA_ENCRYPTION_KEYS lacks one of these keys.

    Example: `pecia keys status`
    """
    settings = common.settings_of_fleet()
    held = _with_database(settings, rekeying.holdings)
    keyring = settings.keyring
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("key", "", "jobs", "secrets"):
        table.add_column(title, justify="left" if title in ("key", "") else "right")
    for one in held:
        if one.key is None:
            mark = "[yellow]not wrapped[/]" if keyring.current else "not encrypted"
        elif one.key not in keyring:
            mark = "[red]not here[/]"
        else:
            mark = "[green]current[/]" if one.key == keyring.current else "[yellow]former[/]"
        table.add_row(one.key or "none", mark, f"{one.jobs:,}", f"{one.secrets:,}")
    stored = [asdict(one) | {"available": one.key in keyring} for one in held]
    common.show({"current": keyring.current, "stored": stored}, table, as_json=as_json)
    if not all(one.key in keyring for one in held):
        raise typer.Exit(common.FAILED)


@keys.command()
def rotate(*, as_json: common.AsJson = False) -> None:
    """Rewrap all data keys under the first key. The fleet may work meanwhile.

    It can be interrupted and repeated. Jobs without a data key get one. Exit 1 if some keys were left.

    Example: `pecia keys rotate`
    """
    settings = common.settings_of_fleet()
    keyring = settings.keyring
    if keyring.current is None:
        raise common.refused(
            f"There is no key to encrypt with: set {SETTING}; `pecia keys new` makes one.", common.USAGE
        )
    done = _with_database(settings, lambda database: _rotate(database, keyring, quiet=as_json))
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(
            f"Wrapped anew: the data keys of {done.jobs:,} jobs, {done.secrets:,} secrets of endpoints."
        )
        if done.refused:
            typer.echo(f"{done.refused} are damaged, or under a key that {SETTING} lacks.", err=True)
    if done.refused:
        raise typer.Exit(common.FAILED)


async def _rotate(database: AsyncEngine, keyring: Keyring, *, quiet: bool) -> rekeying.Rewrapped:
    held = await rekeying.holdings(database)
    due = sum(one.jobs + one.secrets for one in held if one.key != keyring.current)
    with Progress(console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("wrapping", total=due)
        return await rekeying.rewrap(database, keyring, lambda number: progress.advance(task, number))


def _with_database(settings: WorkerSettings, work: Callable[[AsyncEngine], Coroutine[Any, Any, R]]) -> R:
    """Run it with a database engine. Exits 4 with a message if a store is unavailable."""
    url = settings.database_url.get_secret_value()
    if not url:
        raise common.refused("Set PECIA_DATABASE_URL, or start `pecia up`.", common.USAGE)

    async def run() -> R:
        database = open_database(url, connections=1, timeout=LONG_STATEMENT_TIMEOUT)
        try:
            return await work(database)
        finally:
            await database.dispose()

    try:
        return asyncio.run(run())
    except Exception as error:
        if verdict_on(error) is None:
            raise
        raise common.refused(explain(error, url), common.UNAVAILABLE) from None
