"""The engine that asks a server: `vllm serve`, SGLang or any other that speaks OpenAI's chat API."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import base
from pecia_workers.engines.fitting import DOUBTFUL, Room, fitted
from pecia_workers.engines.in_flight import InFlight
from pecia_workers.engines.openai.answer import REPETITION, Answer
from pecia_workers.engines.openai.probes import Prober, check_adapters, chosen
from pecia_workers.engines.openai.requests import Dialect, Prices, chat_body
from pecia_workers.engines.openai.server import ChatServer, Retries, ServedModel, ServerAddress
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import LANGUAGE_MODEL

log = structlog.get_logger(__name__)

_VERDICTS: Final = {"stop": Verdict.OK, "length": Verdict.TRUNCATED, REPETITION: Verdict.REPETITION}


class OpenAiEngine:
    """One chat request a part; the server batches. Several workers may ask one server."""

    def __init__(self, settings: WorkerSettings, retries: Retries | None = None) -> None:
        self._settings = settings
        self._address = ServerAddress.of(settings)
        self._retries = retries or Retries()
        self._slots = min(settings.max_num_seqs or settings.engine_connections, settings.engine_connections)
        self._room = asyncio.Semaphore(self._slots)
        self._running = 0
        self._in_flight = InFlight()
        self._prices = Prices()
        self._server: ChatServer | None = None
        self._served: ServedModel | None = None
        self._prober: Prober | None = None
        self._dialect = Dialect(model=settings.model)

    @property
    def capabilities(self) -> base.Capabilities:
        """Pages and clips, in whatever language the model knows."""
        card = card_of(self._dialect.model, self._settings.card)
        return base.Capabilities(
            name="openai",
            model=self._dialect.model,
            stages=LANGUAGE_MODEL,
            fields=card.fields,
            instructions=card.instructions,
            adapters=frozenset(self._settings.adapters),
        )

    @property
    def budget(self) -> base.Budget:
        """What the settings allow at that server, which does not say what it can hold."""
        return base.Budget(slots=self._slots, tokens=self._settings.max_tokens_in_flight or None)

    async def start(self) -> None:
        """Wait until the server is ready, then find out what it takes and how it counts.

        Raises `EngineDeadError`, `EngineUnavailableError`. `stop` cleans up even after a start that failed.
        """
        server = self._server = ChatServer(self._settings, self._address, self._retries)
        models = await server.open()
        served = chosen(models, self._settings.model)
        check_adapters(models, self._settings.adapters)
        dialect = Dialect(model=served.id)
        self._dialect = replace(dialect, extras=await Prober(server, dialect).extras())
        self._served = served
        # An exact price, for a budget in tokens rests on it; else what was counted once is known.
        prober = Prober(server, self._dialect)
        if await prober.counts_pictures():
            self._prober = prober
        elif self.budget.tokens is not None:
            log.warning("cost_is_an_estimate", until="the server has read pages of the same size")
        log.info("engine_server_is_ready", model=served.id, extras=sorted(self._dialect.extras))

    async def stop(self) -> None:
        """End every request; callers get `asyncio.CancelledError`."""
        await self._in_flight.end_all()
        if self._server:
            await self._server.close()
            self._server = None

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request, its pictures shrunk if they are more than the context.

        By the server's own count; if it has none, it refuses what is too much. Raises `EngineRefusedError`.
        """
        if self._prober is None:
            return request
        context = self._context
        if context and request.prompt_tokens > context * DOUBTFUL:
            return await fitted(request, Room(context=context, item=context), self._count)
        if self.budget.tokens is not None:
            await self._count(request)
        return request

    async def _count(self, request: base.EngineRequest) -> int | None:
        """Return the prompt's length: remembered, or as the server's tokenizer counts it."""
        known = self._prices.exact(request)
        if known is None and self._prober:
            known = await self._prober.count(request)
            if known is not None:
                self._prices.learn(request, known)
        return known

    @property
    def _context(self) -> int | None:
        return (self._served and self._served.max_model_len) or self._settings.max_model_len or None

    def cost(self, request: base.EngineRequest) -> int:
        """Return the prompt's length plus the expected output.

        Exact by the server's own count; else the fleet's asking price.
        """
        return self._prices.tokens(request) + request.bounded(self._settings.max_output_tokens).output_tokens

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        """Return the text. Raises `EngineRefusedError` for what the server refuses."""
        if self._server is None:
            raise base.EngineError("The engine has not started.")
        if request.adapter is not None and request.adapter not in self._settings.adapters:
            raise base.EngineRefusedError(
                "The task names an adapter that this engine does not have.", FailureCode.ADAPTER_UNAVAILABLE
            )
        return await self._in_flight.run(request.id, self._generate(self._server, request))

    async def _generate(self, server: ChatServer, asked: base.EngineRequest) -> base.Generation:
        request = await self.fit(asked)
        async with self._room:
            self._running += 1
            try:
                answer = await self._answer(server, request)
            finally:
                self._running -= 1
        if answer.usage:
            self._prices.learn(request, answer.usage.prompt_tokens)
        generation = _generation(answer, self._usage(request, answer))
        return generation if request is asked else replace(generation, shrunk_to=request.size)

    async def _answer(self, server: ChatServer, request: base.EngineRequest) -> Answer:
        most = request.bounded(self._settings.max_output_tokens).max_output_tokens
        prompt = self._prices.exact(request)
        if prompt is not None and self._context:
            room = self._context - prompt
            if room < 1:
                raise base.EngineRefusedError(
                    f"The request's prompt is {prompt} tokens, the engine's context is {self._context}."
                )
            most = min(most, room) if most else None
        try:
            return await server.ask(await asyncio.to_thread(chat_body, request, self._dialect, most))
        except base.EngineRefusedError as error:
            if request.schema is not None and prompt is not None and self._context:  # so it is not the length
                raise base.EngineRefusedError(str(error), FailureCode.FIELDS_UNAVAILABLE) from None
            if most is None or prompt is not None:
                raise
        # Perhaps there is no room for so long an answer. One without a limit ends with the context.
        return await server.ask(await asyncio.to_thread(chat_body, request, self._dialect, None))

    def _usage(self, request: base.EngineRequest, answer: Answer) -> TokenUsage:
        usage = answer.usage
        return TokenUsage(
            prompt=usage.prompt_tokens if usage else self._prices.tokens(request),
            image=self._prices.pictures(request, usage),
            cached=usage.cached if usage else 0,
            output=usage.completion_tokens if usage else answer.pieces,
        )

    async def abort(self, request_id: str) -> None:
        """End one request; the server ends it when its connection closes."""
        self._in_flight.end(request_id)

    def load(self) -> base.Load:
        """Return what this worker has at the server; the rest of what is in flight waits for a slot.

        Raises `EngineDeadError`.
        """
        if self._server:
            self._server.check()
        waiting = len(self._in_flight) - self._running
        return base.Load(running=self._running, waiting=waiting, drifted=self._prices.drifted)


def _generation(answer: Answer, usage: TokenUsage) -> base.Generation:
    if answer.finish_reason not in _VERDICTS:
        raise base.EngineError("The server ended the answer early.")
    return base.Generation(
        text=answer.text,
        verdict=_VERDICTS[answer.finish_reason] if answer.text.strip() else Verdict.UNREADABLE,
        usage=usage,
        tokens=answer.tokens,
        first_token_s=answer.first_token_s,
    )
