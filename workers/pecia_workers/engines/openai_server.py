"""One OpenAI-compatible server over HTTP: awaited, asked, asked again, and watched."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import structlog
from pydantic import BaseModel, ValidationError

from pecia_schemas import tracing
from pecia_workers.engines.base import EngineDeadError, EngineOverloadedError, EngineUnavailableError
from pecia_workers.engines.openai_answer import read_answer
from pecia_workers.engines.openai_errors import LockedOutError, UnansweredError, error_of
from pecia_workers.engines.openai_watch import ServerWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.openai_address import ServerAddress
    from pecia_workers.engines.openai_answer import Answer

log = structlog.get_logger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # or it says a line for each request

_OK: Final = 200
_FAILED: Final = 500
_CONNECT_S: Final = 10.0
_LOOK_S: Final = 5.0
_AGAIN_S: Final = 0.5
_TELL_S: Final = 15.0
"""How often a start that waits says so."""
_MOST_DOUBLINGS: Final = 20
_SPARE: Final = 2
"""Connections for looks, beside those of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How a request is asked again that got no answer. The waits double and are spread, and follow `Retry-After`."""

    attempts: int = 6
    first_s: float = 0.5
    longest_s: float = 60.0

    def wait_s(self, failed: int, asked: timedelta | None) -> float:
        """Return the wait after `failed` attempts."""
        if asked is not None:
            wait = max(self.first_s, asked.total_seconds())
        else:
            wait = self.first_s * 2.0 ** min(max(0, failed - 1), _MOST_DOUBLINGS)
        return min(wait, self.longest_s) * random.uniform(1.0, 1.25)  # noqa: S311  spreading load, no secret


class ServedModel(BaseModel):
    """A model, or an adapter, that the server can be asked for."""

    id: str
    root: str | None = None
    """What it was loaded from, on the server."""
    parent: str | None = None
    """The model below an adapter."""
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ServedModel]


class _Count(BaseModel):
    count: int


class ChatServer:
    """For one loop. `close` frees its connections, even after an `open` that failed."""

    def __init__(self, settings: WorkerSettings, address: ServerAddress, retries: Retries) -> None:
        self._address = address
        self._retries = retries
        self._patience_s = settings.engine_ready_timeout.total_seconds()
        self._client = httpx2.AsyncClient(
            headers=address.headers,
            timeout=httpx2.Timeout(settings.engine_timeout.total_seconds(), connect=_CONNECT_S, pool=None),
            limits=httpx2.Limits(max_connections=settings.engine_connections + _SPARE),
            trust_env=False,  # documents take no way that the settings do not name
        )
        self._pulse = f"{address.root}/health"
        self._watch = ServerWatch(self._answers, patience_s=self._patience_s)
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> list[ServedModel]:
        """Wait until the server is ready; return what it serves.

        Raises `EngineDeadError` if it takes too long, `EngineUnavailableError` for a wrong address or key.
        """
        begun = told = time.monotonic()
        while True:
            try:
                models = await self._ready()
                break
            except UnansweredError as error:
                now = time.monotonic()
                if now - begun > self._patience_s:
                    raise EngineDeadError(
                        f"No server was ready at {self._address.api} within {self._patience_s:g} s: {error}."
                        " Start it, or correct PECIA_ENGINE_URL."
                    ) from None
                if told == begun or now - told > _TELL_S:
                    log.info("engine_server_awaited", url=self._address.api, because=str(error))
                    told = now
                await asyncio.sleep(_AGAIN_S)
        self._watching = asyncio.create_task(self._watch.run())
        return models

    async def close(self) -> None:
        """Let go of the server."""
        if self._watching:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._client.aclose()

    def check(self) -> None:
        """Raise `EngineDeadError` if the server is dead."""
        self._watch.check()

    async def ask(self, body: bytes) -> Answer:
        """Return the answer to a chat request, asked again as often as it takes and is allowed.

        While the server is away the request waits. Cancelling the caller closes the connection, by which the server
        knows. Raises `EngineError`; if there never was an answer, `EngineOverloadedError`: with fewer there may be.
        """
        failed = 0
        while True:
            await self._watch.there()
            try:
                return await self.ask_once(body)
            except LockedOutError:
                self._watch.give_up("The engine's server does not take PECIA_ENGINE_API_KEY any more.")
            except UnansweredError as error:
                failed += 1
                if failed >= self._retries.attempts:
                    raise EngineOverloadedError(
                        f"The server gave no answer in {failed} attempts, at last: {error}."
                    ) from None
                if error.status is None or error.status >= _FAILED:
                    self._watch.suspect()
                await asyncio.sleep(self._retries.wait_s(failed, error.asked))

    async def ask_once(self, body: bytes) -> Answer:
        """Return the answer to a chat request. Raises `EngineError`, `UnansweredError`, `LockedOutError`."""
        asked_at = time.monotonic()
        with _told_apart():
            async with self._client.stream(
                "POST",
                f"{self._address.api}/chat/completions",
                content=body,
                headers={"Content-Type": "application/json", **tracing.headers()},
            ) as response:
                if response.status_code != _OK:
                    raise error_of(response.status_code, response.headers.get("Retry-After"))
                return await read_answer(response, asked_at)

    async def count(self, body: dict[str, Any]) -> int | None:
        """Return the tokens of a chat prompt by the server's own tokenizer; None if it has none that says so."""
        try:
            with _told_apart():
                response = await self._client.post(f"{self._address.root}/tokenize", json=body)
            return _Count.model_validate_json(response.content).count if response.status_code == _OK else None
        except (UnansweredError, ValidationError):
            return None

    async def _ready(self) -> list[ServedModel]:
        models = await self._models()
        health = await self._status(self._pulse)
        if health >= _FAILED:
            raise UnansweredError(f"its /health says HTTP {health}")
        if health != _OK:
            self._pulse = f"{self._address.api}/models"
        return models

    async def _models(self) -> list[ServedModel]:
        with _told_apart():
            response = await self._client.get(f"{self._address.api}/models", timeout=_LOOK_S)
        if response.status_code != _OK:
            raise _unavailable(self._address.api, response.status_code)
        try:
            return _Models.model_validate_json(response.content).data
        except ValidationError:
            raise EngineUnavailableError(
                f"What answers at {self._address.api}/models is no OpenAI-compatible server:"
                " correct PECIA_ENGINE_URL."
            ) from None

    async def _answers(self) -> bool:
        try:
            return await self._status(self._pulse) < _FAILED
        except UnansweredError:
            return False

    async def _status(self, url: str) -> int:
        with _told_apart():
            return (await self._client.get(url, timeout=_LOOK_S)).status_code


def _unavailable(api: str, status: int) -> Exception:
    """Return what a status other than 200 for the list of models means."""
    error = error_of(status)
    if isinstance(error, UnansweredError):
        return error
    if isinstance(error, LockedOutError):
        return EngineUnavailableError(f"The server at {api} does not take PECIA_ENGINE_API_KEY.")
    return EngineUnavailableError(
        f"There is no OpenAI-compatible server at {api} (HTTP {status}): PECIA_ENGINE_URL is mostly the address"
        " that ends in /v1."
    )


@contextmanager
def _told_apart() -> Iterator[None]:
    """Raise our errors for those of the connection."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        raise UnansweredError("it cannot be reached") from None
    except httpx2.TimeoutException:
        raise UnansweredError("it fell silent") from None
    except httpx2.HTTPError:
        raise UnansweredError("the connection broke") from None
