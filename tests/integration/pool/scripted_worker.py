"""A worker whose parts do what a file named after each of them says. Its arguments are Celery's."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from celery.exceptions import Ignore, Retry

from pecia_schemas.failures import FailureCode
from pecia_schemas.states import Stage
from pecia_workers.app import app, worker_argv
from pecia_workers.protocol.base import Budget
from pecia_workers.protocol.parts import PartCancelledError, PartFailedError, RuntimeLostError
from pecia_workers.worker.pool import EnginePool

if TYPE_CHECKING:
    from pecia_workers.worker.runtime import Runtime

SECRET = "Jane Doe"


class ScriptedRuntime:
    name = f"w{os.getpid()}"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = (directory / "journal").open("a", buffering=1)

    async def start(self, priced: Callable[[UUID, int], None]) -> Budget:
        if os.environ.get("SCRIPTED_START") == "fails":
            raise LookupError("no such model")
        self._priced = priced
        tokens = int(os.environ.get("SCRIPTED_TOKENS", "0"))
        return Budget(slots=int(os.environ.get("SCRIPTED_SLOTS", "100")), tokens=tokens or None)

    @property
    def room(self) -> float:
        file = self._directory / "room"
        return float(file.read_text()) if file.exists() else 1.0

    async def lost(self) -> None:
        while not (self._directory / "lost").exists():  # noqa: ASYNC110  the test is another process
            await asyncio.sleep(0.02)

    @property
    def figures(self) -> dict[str, int]:
        return {"parts-per-minute": 0}

    async def run(
        self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None]
    ) -> dict[str, str]:
        begun({"job": "7", "attempt": deaths + 1})
        self._note("run", part, deaths=deaths)
        if price := os.environ.get("SCRIPTED_PRICE"):
            self._priced(part, int(price))
        try:
            await self._follow_plan(part)
        except asyncio.CancelledError:
            self._note("cancelled", part)
            raise
        self._note("done", part)
        return {"verdict": "ok"}

    async def _follow_plan(self, part: UUID) -> None:
        while (plan := self._plan(part)) == "wait":  # noqa: ASYNC110  the test is another process
            await asyncio.sleep(0.02)
        if plan == "fail":
            raise PartFailedError(FailureCode.TIMEOUT) from ValueError(SECRET)
        if plan == "retry":
            raise Retry(SECRET, exc=PartFailedError(FailureCode.ENGINE_ERROR)) from ValueError(SECRET)
        if plan == "ignore":
            raise Ignore(SECRET)
        if plan == "cancelled":
            raise PartCancelledError(SECRET)
        if plan == "lose":
            raise RuntimeLostError(SECRET)
        if plan == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if plan == "bug":
            (self._directory / "plans" / str(part)).write_text("done")
            raise ValueError(SECRET)

    def _plan(self, part: UUID) -> str:
        file = self._directory / "plans" / str(part)
        return file.read_text() if file.exists() else "done"

    async def requeue(self, parts: Collection[UUID]) -> None:
        for part in parts:
            self._note("given back", part)

    async def revoked(self, part: UUID) -> None:
        self._note("revoked", part)

    async def stop(self) -> None:
        self._journal.close()

    def _note(self, what: str, part: UUID, **more: object) -> None:
        self._journal.write(json.dumps({"what": what, "part": str(part), "pid": os.getpid(), **more}) + "\n")


app.new_runtime = lambda: cast("Runtime", ScriptedRuntime(Path(os.environ["SCRIPTED_DIRECTORY"])))


def interrupt(self: EnginePool) -> None:  # noqa: ARG001  a method
    signal.raise_signal(signal.SIGINT)


if os.environ.get("SCRIPTED_CLOSE") == "interrupted":
    EnginePool.on_close = interrupt

if __name__ == "__main__":
    app.worker_main([*worker_argv([Stage.READ], app.settings, name=ScriptedRuntime.name), *sys.argv[1:]])
