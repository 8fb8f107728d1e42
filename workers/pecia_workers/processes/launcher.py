"""Launcher and janitor of the supervisor's processes, so that none outlives it. Run by path, by any Python.

`python -I -S launcher.py PARENT SIGNAL UID GID COMMAND...` executes another program that cannot outlive its parent; a
UID of -1 keeps the account. It is a separate program because code between fork and exec may deadlock in a threaded
process.

`python -I -S launcher.py` reads ids of process groups from its input, `+ID` or `-ID` a line, and kills the groups when
the input ends: these are grandchildren of a killed supervisor, which no kernel signal reaches.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL, *, parent: int) -> None:
    """Make the kernel send `signum` to this process when the thread that started it ends.

    Exits if that has happened already, that is, if `parent` is not this process's parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the process that started this program has ended")


def _launch(arguments: list[str]) -> None:
    parent, signum, uid, gid = (int(number) for number in arguments[:4])
    command = arguments[4:]
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    die_with_parent(signum, parent=parent)  # after the change of account, which clears it
    try:
        os.execv(command[0], command)  # noqa: S606  no shell is the point
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    if sys.argv[1:]:
        _launch(sys.argv[1:])
    else:
        groups: set[int] = set()
        for line in sys.stdin:
            change, group = line[0], int(line[1:])
            (groups.add if change == "+" else groups.discard)(group)
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
