"""The traces of a process that a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import typer

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tracing import TracingUnavailableError, exported


@contextmanager
def traced_or_exit(settings: WorkerSettings, role: str) -> Iterator[None]:
    """Have spans sent during the block, if the settings say so. Exits if what sends them is not installed."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exported(settings, f"pecia-{role}"))
        except TracingUnavailableError as error:
            typer.echo(f"PECIA_TRACING {error}", err=True)
            raise typer.Exit(4) from None
        yield
