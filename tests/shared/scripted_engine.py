"""An engine that answers what a test tells it to."""

import asyncio
from collections.abc import Callable

from pecia_schemas.states import Stage
from pecia_workers.protocol.base import Capabilities, EngineRequest, Generation

Answer = Generation | Exception


class ScriptedEngine:
    """Answers by `answer`, and remembers what it was asked; an exception is raised, `None` takes for ever."""

    def __init__(
        self, answer: Callable[[EngineRequest], Answer | None], capabilities: Capabilities | None = None
    ) -> None:
        self.asked: list[EngineRequest] = []
        self._answer = answer
        self._capabilities = capabilities or Capabilities(
            name="scripted", model="none", stages=frozenset({Stage.READ}), fields=True
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(self, request: EngineRequest) -> Generation:
        self.asked.append(request)
        answer = self._answer(request)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer
