"""One OpenAI-compatible server over HTTP: its address, startup, requests with retries, and health checks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import httpx2
import numpy as np
import structlog
from pydantic import BaseModel, ValidationError

from pecia_schemas import tracing
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.openai import chat
from pecia_workers.protocol import base
from pecia_workers.protocol.parts import Backoff

log = structlog.get_logger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # or it says a line for each request

_OK: Final = 200
_CONNECT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.5
_REPORT_S: Final = 15.0
"""Seconds between log lines while waiting for a start."""
_SPARE: Final = 2
"""Connections for health checks, beside those of requests."""
_API: Final = "/v1"
_WELL_S: Final = 5.0
_AWAY_S: Final = 0.5
_LOOKS: Final = 4
"""Least number of health checks within the timeout of an unavailable server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A server's two base URLs, without a trailing slash."""

    api: str
    """Base of OpenAI's paths."""
    headers: dict[str, str] = field(repr=False)
    """Headers of every request; the only place of the key."""

    @property
    def root(self) -> str:
        """Base of the server's own paths: health, tokenizer."""
        return self.api.removesuffix(_API)

    @classmethod
    def of(cls, settings: WorkerSettings) -> ServerAddress:
        """Return the configured address. Raises `EngineUnavailableError`, without quoting a key."""
        try:
            url = httpx2.URL(settings.engine_url.strip().rstrip("/"))
        except httpx2.InvalidURL:
            raise base.EngineUnavailableError(
                "PECIA_ENGINE_URL is no address: write it as http://host:8000/v1."
            ) from None
        if url.scheme not in {"http", "https"} or not url.host:
            raise base.EngineUnavailableError(
                "PECIA_ENGINE_URL must begin with http:// or https:// and a host, as in http://host:8000/v1."
            )
        if url.userinfo or url.query:
            raise base.EngineUnavailableError(
                "PECIA_ENGINE_URL appears in logs: put the key into PECIA_ENGINE_API_KEY only."
            )
        key = settings.engine_api_key.get_secret_value().strip()
        if not (key.isascii() and key.isprintable()):
            raise base.EngineUnavailableError(
                "PECIA_ENGINE_API_KEY contains characters that no header can carry."
            )
        return cls(
            api=str(url) if url.path.strip("/") else str(url).rstrip("/") + _API,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )


_BACKOFF = Backoff(first_s=0.5, longest_s=60.0, spread=(1.0, 1.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Retries of requests without an answer. Delays double with jitter, and follow `Retry-After`."""

    attempts: int = 6
    backoff: Backoff = _BACKOFF

    def wait_s(self, failed: int, retry_after: timedelta | None) -> float:
        """Return the delay after `failed` attempts, in seconds."""
        if retry_after is None:
            return self.backoff.wait_s(failed)
        return self.backoff.spread_s(max(self.backoff.first_s, retry_after.total_seconds()))


class ServedModel(BaseModel):
    """A model or adapter of the server."""

    id: str
    root: str | None = None
    """Its origin on the server."""
    parent: str | None = None
    """The base model of an adapter."""
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ServedModel]


class _Count(BaseModel):
    count: int


class ChatServer:
    """A client of the server, for one loop. `close` frees its connections, even after a failed `open`."""

    def __init__(self, settings: WorkerSettings, address: ServerAddress, retries: Retries) -> None:
        self.dialect = chat.Dialect(model=settings.model)
        self._address = address
        self._retries = retries
        self._timeout_s = settings.engine_ready_timeout.total_seconds()
        self._client = httpx2.AsyncClient(
            headers=address.headers,
            timeout=httpx2.Timeout(settings.engine_timeout.total_seconds(), connect=_CONNECT_S, pool=None),
            limits=httpx2.Limits(max_connections=settings.engine_connections + _SPARE),
            trust_env=False,  # documents take no way that the settings do not name
        )
        self._health = f"{address.root}/health"
        self.watch = ServerWatch(self._status, timeout_s=self._timeout_s)
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> list[ServedModel]:
        """Wait until the server is ready; return its models.

        Raises `EngineDeadError` if it takes too long, `EngineUnavailableError` for a wrong address or key.
        """
        begun = reported = time.monotonic()
        while True:
            try:
                models = await self._ready()
                break
            except chat.UnansweredError as error:
                now = time.monotonic()
                if now - begun > self._timeout_s:
                    raise base.EngineDeadError(
                        f"No server was ready at {self._address.api} within {self._timeout_s:g} s: {error}."
                        " Start it, or correct PECIA_ENGINE_URL."
                    ) from None
                if reported == begun or now - reported > _REPORT_S:
                    log.info("engine_server_awaited", url=self._address.api, because=str(error))
                    reported = now
                await asyncio.sleep(_AGAIN_S)
        self._watching = asyncio.create_task(self.watch.run())
        return models

    async def close(self) -> None:
        """Close the connections."""
        if self._watching:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._client.aclose()

    async def ask(self, request: base.EngineRequest, most_tokens: int | None) -> chat.Answer:
        """Return the answer, of at most `most_tokens`, with retries.

        The request waits while the server is unavailable. Cancelling the caller closes the connection, which cancels
        the request on the server. Raises `EngineError`; `EngineOverloadedError` if no attempt got an answer.
        """
        body = await asyncio.to_thread(chat.chat_body, request, self.dialect, most_tokens)
        url = f"{self._address.api}/chat/completions"
        headers = {"Content-Type": "application/json", **tracing.headers()}
        failed = 0
        while True:
            await self.watch.known.wait()
            self.watch.check()
            sent_at = time.monotonic()
            try:
                with _classified():
                    async with self._client.stream("POST", url, content=body, headers=headers) as response:
                        if response.status_code != _OK:
                            raise chat.error_of(response.status_code, response.headers.get("Retry-After"))
                        return await chat.read_answer(response, sent_at)
            except chat.LockedOutError:
                self.watch.give_up("The engine's server now rejects PECIA_ENGINE_API_KEY.")
            except chat.UnansweredError as error:
                failed += 1
                if failed >= self._retries.attempts:
                    raise base.EngineOverloadedError(
                        f"The server gave no answer in {failed} attempts, at last: {error}."
                    ) from None
                if error.status is None or error.status >= chat.FAILED:
                    self.watch.suspect()
                await asyncio.sleep(self._retries.wait_s(failed, error.retry_after))

    async def count(self, request: base.EngineRequest) -> int | None:
        """Return the prompt's tokens by the server's tokenizer, or None if it offers none.

        Sends blank pictures of the same sizes: nothing of the document.
        """
        blank = replace(request, images=tuple(map(np.zeros_like, request.images)))
        model = request.adapter or self.dialect.model
        body = {"model": model, "messages": await asyncio.to_thread(chat.messages, blank)}
        try:
            with _classified():
                response = await self._client.post(f"{self._address.root}/tokenize", json=body)
            return _Count.model_validate_json(response.content).count if response.status_code == _OK else None
        except (chat.UnansweredError, ValidationError):
            return None

    async def _ready(self) -> list[ServedModel]:
        api = self._address.api
        with _classified():
            response = await self._client.get(f"{api}/models", timeout=_ANSWER_TIMEOUT_S)
        if response.status_code != _OK:
            error = chat.error_of(response.status_code)
            if isinstance(error, chat.UnansweredError):
                raise error
            if isinstance(error, chat.LockedOutError):
                raise base.EngineUnavailableError(f"The server at {api} rejects PECIA_ENGINE_API_KEY.")
            raise base.EngineUnavailableError(
                f"There is no OpenAI-compatible server at {api} (HTTP {response.status_code}): PECIA_ENGINE_URL is"
                " mostly the address that ends in /v1."
            )
        try:
            models = _Models.model_validate_json(response.content).data
        except ValidationError:
            raise base.EngineUnavailableError(
                f"What answers at {api}/models is no OpenAI-compatible server: correct PECIA_ENGINE_URL."
            ) from None
        health = await self._status()
        if health >= chat.FAILED:
            raise chat.UnansweredError(f"its /health says HTTP {health}")
        if health != _OK:
            self._health = f"{api}/models"
        return models

    async def _status(self) -> int:
        """Return the HTTP status of the server's health check. Raises `UnansweredError`."""
        with _classified():
            return (await self._client.get(self._health, timeout=_ANSWER_TIMEOUT_S)).status_code


@contextmanager
def _classified() -> Iterator[None]:
    """Turn connection errors into ours."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        raise chat.UnansweredError("it cannot be reached") from None
    except httpx2.TimeoutException:
        raise chat.UnansweredError("it stopped responding") from None
    except httpx2.HTTPError:
        raise chat.UnansweredError("the connection broke") from None


class ServerWatch:
    """Checks the server periodically, and immediately when a request could not reach it.

    `look` returns the HTTP status of its health check. A server unavailable for `timeout_s` is dead, permanently.
    """

    def __init__(self, look: Callable[[], Awaitable[int]], *, timeout_s: float) -> None:
        self._look = look
        self._timeout_s = timeout_s
        self.known = asyncio.Event()
        self.known.set()
        self._suspected = asyncio.Event()
        self._seen = time.monotonic()
        self._away = False
        self._dead = ""

    async def run(self) -> None:
        """Watch until the server is dead."""
        while not self._dead:
            is_there = False
            with suppress(chat.UnansweredError):
                is_there = await self._look() < chat.FAILED
            if is_there and self._away:
                log.info("engine_server_is_back")
            elif not is_there and not self._away:
                log.warning("engine_server_is_away")
            self._away = not is_there
            if is_there:
                self._seen = time.monotonic()
                self.known.set()
            elif time.monotonic() - self._seen > self._timeout_s:
                self.give_up(f"The engine's server has not answered for {self._timeout_s:g} s.")
            else:
                self.known.clear()
            self._suspected.clear()
            pause = min(_AWAY_S if self._away else _WELL_S, self._timeout_s / _LOOKS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._suspected.wait()

    def suspect(self) -> None:
        """Hold requests until the next check, which is immediate unless the server is known to be unavailable."""
        if self.known.is_set() and not self._dead:
            self.known.clear()
            self._suspected.set()

    def give_up(self, reason: str) -> None:
        """Declare the server dead."""
        self._dead = reason
        self.known.set()
        self._suspected.set()

    def check(self) -> None:
        """Raise `EngineDeadError` if the server is dead."""
        if self._dead:
            raise base.EngineDeadError(self._dead)
