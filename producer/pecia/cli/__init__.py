"""The `pecia` command."""

import gc
import sys
from collections.abc import Sequence

_PACKAGES = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit: 0 done, 1 a job failed, 2 usage or settings, 3 timeout, 4 something is away."""
    gc.set_threshold(50_000)  # imported objects are no garbage: else they are looked through again and again
    ending = run(arguments)
    gc.freeze()  # else the interpreter collects what ends with it: a quarter of `pecia list`
    sys.exit(ending)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. What goes wrong is one line on standard error."""
    try:
        from pecia.cli.app import app  # noqa: PLC0415  an extra

        return int(app(arguments, prog_name="pecia", standalone_mode=False) or 0)
    except Exception as error:  # noqa: BLE001  a traceback is no help at a terminal; the place is enough to report
        if isinstance(error, ModuleNotFoundError) and error.name in _PACKAGES:
            from pecia_schemas.installing import install_command  # noqa: PLC0415  only here

            sys.stderr.write(f"The command is an extra of the client: {install_command('cli')}\n")
            return 2
        from pecia.cli import endings  # noqa: PLC0415  brings the client

        return endings.after(error)
