"""An engine worker whose engine reads nothing, takes a moment for it, and ends the process on a page of one width."""

import asyncio
import os
import signal
import sys

from pecia.cli import main
from pecia_workers.engines import registry
from pecia_workers.engines.simulated import InstantEngine
from pecia_workers.protocol.base import EngineRequest, Generation

DEADLY_WIDTH = 77
_SERVICE_S = 0.3


class DeadlyEngine(InstantEngine):
    async def generate(self, request: EngineRequest) -> Generation:
        if request.images[0].shape[1] == DEADLY_WIDTH:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(_SERVICE_S)
        return await super().generate(request)


registry._ENGINES["simulated:instant"] = lambda _: DeadlyEngine()

if __name__ == "__main__":
    sys.argv = ["pecia", "worker", "engine"]
    main()
