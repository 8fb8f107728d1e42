"""`pecia migrate`: bring the database to this version's schema."""

from typing import Annotated

import typer

from pecia_migrations import LockedError, RevisionError, downgrade, revision_of, upgrade
from pecia_schemas.connecting import explain, verdict_on
from pecia_schemas.settings import ConnectionSettings, SettingsError, read_settings


def migrate(
    to: Annotated[str, typer.Option(help="Revision to reach; an older one with `--down` alone.")] = "head",
    *,
    down: Annotated[
        bool, typer.Option("--down", help="Go down to `--to` instead of up: it takes tables away.")
    ] = False,
) -> None:
    """Bring the database to this version's schema. Safe to repeat.

    Example: `PECIA_DATABASE_URL=postgresql://pecia@db/pecia pecia migrate`
    """
    if not to:
        raise typer.BadParameter("no revision is named.", param_hint="--to")
    try:
        url = read_settings(ConnectionSettings).database_url.get_secret_value()
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if not url:
        typer.echo("No database: set PECIA_DATABASE_URL, or let `pecia up` run one.", err=True)
        raise typer.Exit(2)
    try:
        (downgrade if down else upgrade)(url, to)
        reached = revision_of(url)
    except (LockedError, RevisionError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(4) from None
    except Exception as error:
        if verdict_on(error) is None:
            raise
        typer.echo(explain(error, url), err=True)
        raise typer.Exit(4) from None
    typer.echo(f"The database is at {reached or 'base'}.")
