"""`pecia access` and `pecia env`: keys of the gateway, and the variables by which other programs reach the fleet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from pecia.accounts import AccessKey, AccessUsage, Scope
from pecia.cli import output, values
from pecia.configuration import resolve
from pecia.connections import Connections
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane

_HEADINGS = ("id", "tenant", "name", "state", "may", "lanes", "pages a day", "in flight")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object on a line.")]


def variables_of(settings: ClientSettings) -> dict[str, str]:
    """Return the variables that name a fleet's stores."""
    return {
        "PECIA_DATABASE_URL": settings.database_url.get_secret_value(),
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": settings.payload_url,
    }


def env(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of shell lines.")
    ] = False,
) -> None:
    """Print the variables that other programs need to reach this fleet, such as `celery -A pecia_workers.app`.

    They hold the stores' passwords: let a shell read them, not a log. With several fleets on this machine, `--home`
    before the verb, or PECIA_HOME, chooses.

    Example: `eval "$(pecia env)"`
    """
    variables = variables_of(resolve(None, database_url=None, redis_url=None, payload_url=None))
    if as_json:
        typer.echo(json.dumps(variables))
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


access = typer.Typer(no_args_is_help=True)


@access.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is called: the person or program that uses it.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose jobs it sees, and no others.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it may; may be repeated. Default: submit and read.")
    ] = None,
    lane: Annotated[
        list[Lane] | None, typer.Option(help="Into which it may submit; may be repeated. Default: all.")
    ] = None,
    pages_per_day: Annotated[int | None, typer.Option(min=1, help="Most pages in 24 hours.")] = None,
    pages_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Most pages that wait or are read.")
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="WHEN", help="When it ends: 30d or a date.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed now and never again: hand it to its user.

    Example: `pecia access create intake --tenant north-clinic --scope submit --scope read --pages-per-day 10000`
    """
    span = values.moment(expires, "--expires")
    with _connected() as connections:
        key, shown = connections.access.add(
            tenant=tenant,
            name=name,
            scopes=tuple(scope or (Scope.SUBMIT, Scope.READ)),
            lanes=tuple(lane or Lane),
            pages_per_day=pages_per_day,
            pages_in_flight=pages_in_flight,
            expires_at=datetime.now(UTC) + span if isinstance(span, timedelta) else span,
        )
    if as_json:
        output.json_line(key.model_dump(mode="json") | {"key": shown})
        return
    typer.echo(shown)
    typer.echo(f"Key {key.id} of {key.client}, shown this once.", err=True)


@access.command("list")
def list_keys(
    *, tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None, as_json: AsJson = False
) -> None:
    """Show the keys there are, those that ended too, and how much of its limits each has taken.

    Example: `pecia access list --tenant north-clinic`
    """
    with _connected() as connections:
        found = [(key, connections.access.load(key)) for key in connections.access.all(tenant)]
    if as_json:
        for key, taken in found:
            output.json_line(key.model_dump(mode="json") | {"taken": taken})
    else:
        typer.echo(output.fitting(_HEADINGS, [_row(*one) for one in found], spare=_HEADINGS[:2:-1]))


@access.command("revoke")
def revoke(
    keys: Annotated[
        list[UUID], typer.Argument(metavar="KEY...", help="Ids, as `pecia access list` shows them.")
    ],
) -> None:
    """End keys. Within seconds they open nothing; jobs that they submitted go on.

    Example: `pecia access revoke 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with _connected() as connections:
        for key in keys:
            connections.access.revoke(key)


def _connected() -> closing[Connections]:
    return closing(Connections(resolve(None, database_url=None, redis_url=None, payload_url=None)))


def _row(key: AccessKey, taken: AccessUsage) -> Sequence[object]:
    state = "revoked" if key.revoked_at else "valid" if key.is_valid else "expired"
    limited = ((taken.pages_of_day, key.pages_per_day), (taken.pages_in_flight, key.pages_in_flight))
    limits = (f"{pages:,}" if limit is None else f"{pages:,} of {limit:,}" for pages, limit in limited)
    return (key.id, key.tenant, key.name, state, ", ".join(key.scopes), ", ".join(key.lanes), *limits)
