"""`pecia keys`: make a key, see what is encrypted under which, and bring everything under the current one.

What is encrypted anew goes document by document, then row by row. It can be broken off at any moment and begun again:
what is under the current key already is passed over.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from obstore.exceptions import BaseError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import explain, verdict_on
from pecia_schemas.encryption import SETTING, DecryptionError, Keyring, checked_key_id, new_key
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands import common
from pecia_workers.ledger import rekeying
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_database

R = TypeVar("R")

keys = typer.Typer(no_args_is_help=True)


@keys.command()
def new(name: Annotated[str, typer.Argument(help="What to call it. Default: today's date.")] = "") -> None:
    """Print a fresh key as PECIA_ENCRYPTION_KEYS takes it. It is kept nowhere: who loses it loses the documents.

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
    """Count what is stored under each key. Exit 1 if something is under a key that PECIA_ENCRYPTION_KEYS lacks.

    Example: `pecia keys status`
    """
    settings = common.settings_of_fleet()
    held = _with_database(settings, rekeying.holdings)
    keyring = settings.keyring
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("key", "", "documents", "results", "tasks", "secrets"):
        table.add_column(title, justify="left" if title in ("key", "") else "right")
    for one in held:
        if one.key is None:
            mark = "[yellow]not encrypted[/]" if keyring.current else "not encrypted"
        elif one.key not in keyring:
            mark = "[red]not here[/]"
        else:
            mark = "[green]current[/]" if one.key == keyring.current else "[yellow]former[/]"
        counts = [f"{number:,}" for number in (one.payloads, one.results, one.tasks, one.secrets)]
        table.add_row(one.key or "none", mark, *counts)
    stored = [asdict(one) | {"available": one.key in keyring} for one in held]
    common.show({"current": keyring.current, "stored": stored}, table, as_json=as_json)
    if not all(one.key in keyring for one in held):
        raise typer.Exit(common.FAILED)


@keys.command()
def rotate(*, as_json: common.AsJson = False) -> None:
    """Encrypt anew, under the first key, what is stored under another one or none; the fleet may work meanwhile.

    It can be broken off and begun again. Exit 1 if something was left, for jobs that are not over: run it again.

    Example: `pecia keys rotate`
    """
    settings = common.settings_of_fleet()
    if settings.keyring.current is None:
        raise common.refused(
            f"There is no key to encrypt with: set {SETTING}; `pecia keys new` makes one.", common.USAGE
        )
    rekeyed = _with_database(settings, lambda database: _rotate(database, settings, quiet=as_json))
    if as_json:
        typer.echo(json.dumps(asdict(rekeyed)))
    else:
        typer.echo(
            f"Encrypted anew: {rekeyed.payloads} documents, {rekeyed.results} results, {rekeyed.tasks} tasks with "
            f"labels, schemas, passwords or URLs, secrets of {rekeyed.secrets} endpoints."
        )
        if rekeyed.in_use:
            typer.echo(
                f"{rekeyed.in_use} documents are in use: run it again when their jobs are over.", err=True
            )
        if rekeyed.refused:
            typer.echo(
                f"{rekeyed.refused} are missing, damaged, or under a key that {SETTING} lacks.", err=True
            )
    if rekeyed.in_use or rekeyed.refused:
        raise typer.Exit(common.FAILED)


async def _rotate(database: AsyncEngine, settings: WorkerSettings, *, quiet: bool) -> Rekeyed:
    keyring = settings.keyring
    work = Rekeying(
        database=database,
        store=PayloadStore.open(settings.payload_url, settings.payload_options, keys=keyring),
        keys=keyring,
        spool=Path(settings.spool_dir) if settings.spool_dir else None,
    )
    due = sum(
        one.payloads + one.tasks + one.results + one.secrets
        for one in await rekeying.holdings(database)
        if one.key != keyring.current
    )
    with Progress(console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("encrypting", total=due)
        return await work.run(lambda number: progress.advance(task, number))


def _with_database(settings: WorkerSettings, work: Callable[[AsyncEngine], Coroutine[Any, Any, R]]) -> R:
    """Run it on a database of its own. Exits 4 with a sentence if a store is away."""
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
    except (BaseError, OSError) as error:
        name = type(error).__name__
        raise common.refused(
            f"A document cannot be read or written ({name}): check PECIA_PAYLOAD_URL.", common.UNAVAILABLE
        ) from None
    except Exception as error:
        if verdict_on(error) is None:
            raise
        raise common.refused(explain(error, url), common.UNAVAILABLE) from None


@dataclass(slots=True)
class Rekeyed:
    """What was done, and what was left."""

    payloads: int = 0
    tasks: int = 0
    """Jobs with a label, `fields`, instructions, a password or a URL."""
    results: int = 0
    secrets: int = 0
    """Endpoints, each with its secrets."""
    in_use: int = 0
    """Documents that were left because a job that needs them is not over."""
    refused: int = 0
    """Documents and rows that are missing, damaged, or under a key that is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeying:
    """Brings everything under the current one of `keys`, beside a fleet that works."""

    database: AsyncEngine
    store: PayloadStore
    keys: Keyring
    spool: Path | None = None
    """Where decrypted documents lie for a moment; None: the temporary directory."""
    done: Rekeyed = field(default_factory=Rekeyed)

    async def run(self, progress: Callable[[int], None]) -> Rekeyed:
        """Go through all; `progress` gets how many were done. Raises what the stores raise if they are away."""
        async for span in rekeying.spans(self.database, rekeying.PAYLOADS):
            for document, in_use in await rekeying.payloads_due(self.database, span, self.keys):
                if in_use:
                    self.done.in_use += 1
                else:
                    await self._document(document)
                progress(1)
        self.done.tasks = await self._rows(rekeying.TASKS, progress)
        for kind in (rekeying.RESULTS, rekeying.REVISIONS):
            self.done.results += await self._rows(kind, progress)
        self.done.secrets = await self._rows(rekeying.SECRETS, progress)
        return self.done

    async def _document(self, document: PayloadRef) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="pecia-rekeying-", dir=self.spool) as directory:
                copy = Path(directory) / "document"
                await self.store.download(document, copy)
                stored = await asyncio.to_thread(self.store.put, copy)
            moved = await rekeying.move_payload(self.database, document, stored, self.keys, store=self.store)
        except (PayloadMissingError, PayloadCorruptError, DecryptionError):
            self.done.refused += 1
        else:
            self.done.payloads += moved
            self.done.in_use += not moved

    async def _rows(self, kind: rekeying.Rows, progress: Callable[[int], None]) -> int:
        rewritten = 0
        async for span in rekeying.spans(self.database, kind):
            resealed, left = await rekeying.reseal(self.database, kind, span, self.keys)
            rewritten += resealed
            self.done.refused += left
            progress(resealed + left)
        return rewritten
