"""`pecia env`: the variables by which other programs reach the fleet that this command reaches."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from pecia.configuration import resolve
from pecia_schemas.settings import ClientSettings


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
