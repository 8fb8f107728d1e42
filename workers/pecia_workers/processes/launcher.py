"""What stands between the supervisor and its processes, so that none outlives it. Run by path, by any Python.

`python -I -S launcher.py PARENT SIGNAL UID GID COMMAND...` becomes another program that cannot outlive its parent; a
UID of -1 keeps the account. Code between fork and exec of a process with threads may deadlock, so it is a program.

`python -I -S launcher.py` reads groups of processes from its input, `+ID` or `-ID` a line; when the input ends, so do
they: the children of a killed supervisor's children, whom no signal of the kernel reaches.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL, *, parent: int) -> None:
    """Have the kernel send `signum` to this process when the thread that started it ends, however it ends.

    Exits if that is the case already, as `parent`, the process of that thread, tells.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the process that wanted this program is gone")


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
