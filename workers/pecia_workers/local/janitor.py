"""Ends what a killed supervisor leaves behind: the children of its children, whom no signal of the kernel reaches.

Run by path. Reads groups of processes from its input, `+ID` or `-ID` a line; when the input ends, so do they.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


class Janitor:
    """The supervisor's side: a process that outlives it by a moment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the supervisor
        )

    def watch(self, group: int) -> None:
        """End this group when the supervisor has died."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """Leave this group alone: it has ended, and its number may become another's."""
        self._tell(f"-{group}")

    def dismiss(self) -> None:
        """End every group that is still watched, and the janitor."""
        with suppress(BrokenPipeError):
            self._process.communicate()

    def _tell(self, line: str) -> None:
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)


def _main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        change, group = line[0], int(line[1:])
        (groups.add if change == "+" else groups.discard)(group)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _main()
