"""The engine worker that `pecia backfill --ray` runs beside itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pecia.cli.environment import variables_of
from pecia.errors import UnavailableError
from pecia_schemas.settings import ClientSettings


class _Ended(BaseException):
    """The worker ended by itself; nothing on the way may take it for an error of its own."""


@contextmanager
def ray_worker(settings: ClientSettings) -> Iterator[None]:
    """Have a worker read with Ray meanwhile; it has given back what it had when this is over. For the main thread.

    Raises `UnavailableError`, in the midst of whatever runs, if the worker ends by itself.
    """
    # The launcher becomes the worker, which hears SIGTERM when this process is gone.
    launcher = [sys.executable, "-m", "pecia_workers.local.launcher"]
    death = [str(os.getpid()), str(int(signal.SIGTERM)), "-1", "-1"]
    command = [sys.executable, "-m", "pecia_workers", "worker", "engine", "--name", f"backfill-{os.getpid()}"]
    # In a session of its own, for Ctrl-C is ours; what it says goes to standard error.
    worker = subprocess.Popen(
        [*launcher, *death, *command],
        env=os.environ | variables_of(settings) | {"PECIA_ENGINE": "ray"},
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )

    def look(*_: Any) -> None:
        if worker.poll() is not None:
            raise _Ended

    former = signal.signal(signal.SIGCHLD, look)
    try:
        look()
        yield
    except _Ended:
        raise UnavailableError(
            f"The worker that reads with Ray has ended ({worker.returncode}); it says why above. Repeat the command: "
            "what was read stays, and only the rest is read."
        ) from None
    finally:
        signal.signal(signal.SIGCHLD, former)
        _stop(worker)


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """Let it finish or give back what it has begun; a second Ctrl-C ends it at once."""
    worker.terminate()
    try:
        worker.wait()
    except KeyboardInterrupt:
        worker.kill()
        raise
