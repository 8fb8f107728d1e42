"""What one server can do, found out once by asking it for a word."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from pecia_workers.engines import base
from pecia_workers.engines.openai.answer import ServerUsage
from pecia_workers.engines.openai.requests import EXTRAS, Dialect, chat_body, messages
from pecia_workers.engines.openai.server import ChatServer, ServedModel

log = structlog.get_logger(__name__)

PICTURE: Final = np.zeros((84, 112, 3), dtype=np.uint8)
"""The picture that the server counts when no page is there."""


def blank(request: base.EngineRequest) -> base.EngineRequest:
    """Return a request whose prompt is as long, without anything of the document in it."""
    return replace(request, images=tuple(np.zeros_like(image) for image in request.images))


def probe(*images: NDArray[np.uint8]) -> base.EngineRequest:
    """Return a small request about pictures of our own."""
    return base.EngineRequest(
        id="probe", images=images, workload="mixed", instruction="Say yes.", max_output_tokens=1
    )


_EVERYTHING: Final = replace(
    probe(),
    priority=1,
    log_probabilities=True,
    sampling=base.Sampling(skip_special_tokens=False, extra_args={"probe": 1}),
)
"""A request that makes use of every extra; a priority of 0 would be taken by all."""


def chosen(served: list[ServedModel], wanted: str) -> ServedModel:
    """Return the model that the settings mean. Raises `EngineUnavailableError`."""
    named = [model for model in served if wanted in {model.id, model.root}]
    bases = [model for model in served if model.parent is None]
    if named:
        return named[0]
    if len(bases) == 1 and (not wanted or Path(wanted).is_dir()):
        return bases[0]
    names = ", ".join(model.id for model in bases) or "none"
    raise base.EngineUnavailableError(
        f"The server does not serve {wanted!r}. PECIA_MODEL is one of its models: {names}."
        if wanted
        else f"The server serves several models; PECIA_MODEL is one of them: {names}."
    )


def check_adapters(served: list[ServedModel], wanted: Collection[str]) -> None:
    """Raise `EngineUnavailableError` unless the server has the adapters under these names."""
    missing = sorted(set(wanted) - {model.id for model in served})
    if missing:
        raise base.EngineUnavailableError(
            f"The server serves no adapter {', '.join(missing)}: give it --lora-modules, or correct PECIA_ADAPTERS."
        )


class Prober:
    """Asks a server small questions, in its dialect."""

    def __init__(self, server: ChatServer, dialect: Dialect) -> None:
        self._server = server
        self._dialect = dialect

    async def extras(self) -> frozenset[str]:
        """Return which of the extra options the server takes. Raises `EngineDeadError`."""
        if await self._takes(frozenset(EXTRAS)):
            return frozenset(EXTRAS)
        if not await self._takes(frozenset()):
            raise base.EngineDeadError("The server is ready but answers no chat request.")
        taken = frozenset([extra for extra in EXTRAS if await self._takes(frozenset([extra]))])
        log.warning("engine_server_lacks", options=sorted(frozenset(EXTRAS) - taken))
        return taken

    async def _takes(self, extras: frozenset[str]) -> bool:
        try:
            await self._ask(_EVERYTHING, replace(self._dialect, extras=extras))
        except base.EngineDeadError:
            raise
        except base.EngineError:
            return False
        return True

    async def prompt_tokens(self, request: base.EngineRequest) -> int:
        """Return the length of the request's prompt, as the server counts it in an answer of one token."""
        usage = await self._ask(request, self._dialect)
        if usage is None:
            raise base.EngineUnavailableError("The server does not say how many tokens it read.")
        return usage.prompt_tokens

    async def _ask(self, request: base.EngineRequest, dialect: Dialect) -> ServerUsage | None:
        body = await asyncio.to_thread(chat_body, request, dialect, 1)
        return (await self._server.ask(body)).usage

    async def count(self, request: base.EngineRequest) -> int | None:
        """Return the same from the server's tokenizer, which reads nothing; None if it has none."""
        body = {
            "model": request.adapter or self._dialect.model,
            "messages": await asyncio.to_thread(messages, blank(request)),
        }
        return await self._server.count(body)

    async def counts_pictures(self) -> bool:
        """Return whether the server's tokenizer counts as its model does."""
        asked = probe(PICTURE)
        counted = await self.count(asked)
        return counted is not None and counted == await self.prompt_tokens(asked)
