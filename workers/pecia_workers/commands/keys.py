"""`pecia keys`: make a key, see what is encrypted under which, and bring everything under the current one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from pecia_schemas.encryption import SETTING, checked_key_id, new_key
from pecia_workers.commands.settings import settings_or_exit

_USAGE = 2

keys = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Make encryption keys, and bring what is stored under the current one.",
)


@keys.callback()
def root() -> None:
    """Let a single verb stay a verb."""


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="What to call it. Default: today's date.")] = "",
) -> None:
    """Print a fresh key as an entry of PECIA_ENCRYPTION_KEYS. It is stored nowhere: losing it loses the documents.

    Example: `pecia keys new`
    """
    called = name or datetime.now(UTC).date().isoformat()
    try:
        checked_key_id(called)
    except ValueError as error:
        raise _refused(f"{SETTING} {error}") from None
    if called in settings_or_exit().keyring:
        raise _refused(f"There is a key {called!r} already: give the new one another name.")
    typer.echo(json.dumps({called: new_key()}))


def _refused(sentence: str) -> typer.Exit:
    typer.echo(sentence, err=True)
    return typer.Exit(_USAGE)
