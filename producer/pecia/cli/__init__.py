"""The `pecia` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from typer.exceptions import TyperException

from pecia.cli import endings
from pecia.cli.app import app
from pecia.cli.endings import Ending
from pecia.errors import PeciaError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit: 0 done, 1 a job failed, 2 usage or settings, 3 timeout, 4 something is away."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. What goes wrong is one line on standard error."""
    try:
        return int(app(arguments, prog_name="pecia", standalone_mode=False) or Ending.DONE)
    except TyperException as error:
        endings.complain(endings.of_usage(error))
        return error.exit_code
    except PeciaError as error:
        endings.complain(str(error))
        return endings.of(error)
    except Exception as error:  # noqa: BLE001  a traceback helps nobody at a terminal; the place is enough to report
        endings.complain(endings.of_fault(error))
        return Ending.FAILED
