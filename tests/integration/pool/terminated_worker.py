"""A worker that sends itself SIGTERM when it first enters, or leaves, the function that TERMINATED_AT names.

`TERMINATED_AT` is `before` or `after`, a module and a name in it: `before pecia_workers.ledger.ledger:Ledger.commit`.
"""

import functools
import importlib
import inspect
import os
import signal
from typing import Any

from pecia.cli import main

_moment, _place = os.environ["TERMINATED_AT"].split()
_struck = False


def _strike(moment: str) -> None:
    global _struck  # noqa: PLW0603  once in a process
    if moment == _moment and not _struck:
        _struck = True
        print(f"terminated {os.environ['TERMINATED_AT']}", flush=True)  # noqa: T201  for the test, by the log
        os.kill(os.getpid(), signal.SIGTERM)


def _struck_at(inner: Any) -> Any:
    async def finish(work: Any) -> Any:
        result = await work
        _strike("after")
        return result

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        _strike("before")
        result = inner(*args, **kwargs)
        if inspect.iscoroutine(result):
            return finish(result)
        _strike("after")
        return result

    return call


_module, _, _name = _place.partition(":")
*_path, _last = _name.split(".")
_owner = functools.reduce(getattr, _path, importlib.import_module(_module))
setattr(_owner, _last, _struck_at(getattr(_owner, _last)))

if __name__ == "__main__":
    main()
