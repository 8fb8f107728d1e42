"""The `pecia` command."""

import gc
import sys
from collections.abc import Sequence

_PACKAGES = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with the code of `Ending`."""
    gc.set_threshold(50_000)  # else the collector scans imported objects repeatedly
    ending = run(arguments)
    gc.freeze()  # else the interpreter collects at exit, a quarter of the time of `pecia list`
    sys.exit(ending)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. An error is printed as one line on standard error."""
    try:
        from pecia.cli.app import app  # noqa: PLC0415  an extra

        return int(app(arguments, prog_name="pecia", standalone_mode=False) or 0)
    except Exception as error:  # noqa: BLE001  a traceback is no help at a terminal; the place is enough to report
        if isinstance(error, ModuleNotFoundError) and error.name in _PACKAGES:
            from pecia_schemas.installing import install_command  # noqa: PLC0415  only here

            sys.stderr.write(f"The command needs an extra of the client: {install_command('cli')}\n")
            return 2
        from pecia.cli import endings  # noqa: PLC0415  brings the client

        return endings.after(error)
