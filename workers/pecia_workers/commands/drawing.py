"""Pictures for a verb, where what draws them is installed."""

from __future__ import annotations

from importlib.util import find_spec

import typer


def drawing_or_exit() -> None:
    """Exit 4 with what to install if nothing here draws."""
    if find_spec("matplotlib") is None:
        typer.echo("Nothing here draws: pip install 'pecia[plot]'.", err=True)
        raise typer.Exit(4)
