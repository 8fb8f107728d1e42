"""`pecia sample`: documents to try the fleet with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pecia_workers.local.exhibits import write_exhibits

_USAGE = 2


def sample(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where they are written; made if missing.", file_okay=False)
    ],
) -> None:
    """Write made-up medical documents to try things with: a PDF of some pages, pictures, a damaged file.

    A file of that name that is there already stays. Prints their paths.

    Example: `pecia sample papers`
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        exhibits = write_exhibits(directory)
    except OSError as error:
        typer.echo(f"{directory} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(_USAGE) from None
    for exhibit in exhibits:
        typer.echo(exhibit.path)
