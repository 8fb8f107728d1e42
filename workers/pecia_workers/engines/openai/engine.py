"""The engine that uses a server: `vllm serve`, SGLang or any other with OpenAI's chat API."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.openai.chat import EXTRAS, Answer, Dialect, ServerUsage
from pecia_workers.engines.openai.server import ChatServer, Retries, ServedModel, ServerAddress
from pecia_workers.engines.reader_cards import language_model
from pecia_workers.engines.requests import RequestLimits, check_adapter, fitted_by_count, probe, verdict_of
from pecia_workers.protocol import base

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 4096
"""Prompts whose length the server has counted."""
_PICTURE: Final = probe(np.zeros((84, 112, 3), dtype=np.uint8))
"""Key for the server's count of a prompt without a page."""
_EVERYTHING: Final = replace(
    probe(),
    priority=1,
    log_probabilities=True,
    sampling=base.Sampling(skip_special_tokens=False, extra_args={"probe": 1}),
)
"""A request that uses every extra; a priority of 0 would be accepted by all servers."""


class OpenAiEngine(base.Engine):
    """One chat request for each part; the server batches. Several workers may share a server."""

    def __init__(self, settings: WorkerSettings, retries: Retries | None = None) -> None:
        slots = min(settings.max_num_seqs or settings.engine_connections, settings.engine_connections)
        # What the settings allow at that server, which does not say what it can hold.
        budget = base.Budget(slots=slots, tokens=settings.max_tokens_in_flight or None)
        capabilities = language_model("openai", settings, settings.model)
        super().__init__(capabilities, budget, settings.max_output_tokens)
        self._settings = settings
        self._address = ServerAddress.of(settings)
        self._retries = retries or Retries()
        self._slots = asyncio.Semaphore(slots)
        self._running = 0
        self._prices = Prices()
        self._server: ChatServer | None = None
        self._context = settings.max_model_len or None
        self._counts = False
        """Whether the server's tokenizer and model agree on counts."""

    async def start(self) -> None:
        """Wait until the server is ready, then probe which options it accepts and how it counts tokens."""
        server = self._server = ChatServer(self._settings, self._address, self._retries)
        models = await server.open()
        served = chosen(models, self._settings.model)
        check_adapters(models, self._settings.adapters)
        self.capabilities = language_model("openai", self._settings, served.id)
        self._context = served.max_model_len or self._context
        server.dialect = Dialect(model=served.id, extras=await _extras(server, served.id))
        # An exact price, for a budget in tokens rests on it; else an earlier count is known.
        counted = await server.count(_PICTURE)
        if counted is not None:
            usage = (await server.ask(_PICTURE, 1)).usage
            if usage is None:
                raise base.EngineUnavailableError("The server does not say how many tokens it read.")
            self._counts = counted == usage.prompt_tokens
        if not self._counts and self.budget.tokens is not None:
            log.warning("cost_is_an_estimate", until="for pages of a size that the server has read")
        log.info("engine_server_is_ready", model=served.id, extras=sorted(server.dialect.extras))

    async def stop(self) -> None:
        """End every request; callers get `asyncio.CancelledError`."""
        await self._end_all()
        if self._server:
            await self._server.close()
            self._server = None

    async def fit(self, request: base.EngineRequest) -> base.EngineRequest:
        """Return the request, reduced by the server's own count; a server without counts refuses too large requests."""
        if not self._counts:
            return request
        fitted, context = request, self._context
        if context:
            limits = RequestLimits(context=context, item=context)
            fitted = await fitted_by_count(request, limits, self._count)
        if self.budget.tokens is not None:
            await self._count(fitted)
        return fitted

    async def _count(self, request: base.EngineRequest) -> int | None:
        """Return the prompt's length, remembered or counted by the server's tokenizer."""
        known = self._prices.exact(request)
        if known is None and self._server:
            known = await self._server.count(request)
            if known is not None:
                self._prices.learn(request, known)
        return known

    def _prompt_tokens(self, request: base.EngineRequest) -> int:
        return self._prices.exact(request) or request.prompt_tokens

    async def _answer(self, request: base.EngineRequest) -> base.Generation:
        if self._server is None:
            raise base.EngineError("The engine has not started.")
        check_adapter(request, self._settings)
        fitted = await self.fit(request)
        async with self._slots:
            self._running += 1
            try:
                answer = await self._sent(self._server, fitted)
            finally:
                self._running -= 1
        if answer.usage:
            self._prices.learn(fitted, answer.usage.prompt_tokens)
        usage = answer.usage or ServerUsage(
            prompt_tokens=self._prompt_tokens(fitted), completion_tokens=answer.pieces
        )
        pictures = usage.pictures or {"image": min(fitted.picture_tokens, usage.prompt_tokens)}
        early = "The server ended the answer early."
        return base.Generation(
            text=answer.text,
            verdict=verdict_of(answer.finish_reason, answer.text, otherwise=early),
            usage=TokenUsage(
                prompt=usage.prompt_tokens,
                image=sum(pictures.values()),
                cached=usage.cached or 0,
                output=usage.completion_tokens,
            ),
            tokens=answer.tokens,
            first_token_s=answer.first_token_s,
            shrunk_to=None if fitted is request else fitted.size,
        )

    async def _sent(self, server: ChatServer, request: base.EngineRequest) -> Answer:
        most = request.bounded(self._most_output).max_output_tokens
        prompt = self._prices.exact(request)
        if prompt is not None and self._context:
            left = self._context - prompt
            if left < 1:
                raise base.EngineRefusedError(
                    f"The request's prompt is {prompt} tokens, the engine's context is {self._context}."
                )
            most = min(most, left) if most else None
        try:
            return await server.ask(request, most)
        except base.EngineRefusedError as error:
            if request.schema is not None and prompt is not None and self._context:  # so it is not the length
                raise base.EngineRefusedError(str(error), FailureCode.FIELDS_UNAVAILABLE) from None
            if most is None or prompt is not None:
                raise
        # Perhaps there is no room for so long an answer. One without a limit ends with the context.
        return await server.ask(request, None)

    def load(self) -> base.Load:
        """Return the requests of this worker at the server; others in flight wait for a slot."""
        if self._server:
            self._server.watch.check()
        waiting = len(self._in_flight) - self._running
        return base.Load(running=self._running, waiting=waiting, drifted=self._prices.drifted)


def chosen(served: list[ServedModel], wanted: str) -> ServedModel:
    """Return the configured model. Raises `EngineUnavailableError`."""
    named = [model for model in served if wanted in {model.id, model.root}]
    bases = [model for model in served if model.parent is None]
    if named:
        return named[0]
    if len(bases) == 1 and (not wanted or Path(wanted).is_dir()):
        return bases[0]
    names = ", ".join(model.id for model in bases) or "none"
    raise base.EngineUnavailableError(
        f"The server does not serve {wanted!r}. Set PECIA_MODEL to one of its models: {names}."
        if wanted
        else f"The server serves several models; set PECIA_MODEL to one of them: {names}."
    )


def check_adapters(served: list[ServedModel], wanted: Collection[str]) -> None:
    """Raise `EngineUnavailableError` unless the server has the adapters under these names."""
    missing = sorted(set(wanted) - {model.id for model in served})
    if missing:
        raise base.EngineUnavailableError(
            f"The server serves no adapter {', '.join(missing)}: give it --lora-modules, or correct PECIA_ADAPTERS."
        )


async def _extras(server: ChatServer, model: str) -> frozenset[str]:
    """Return the extra options that the server accepts, probed by short requests. Raises `EngineDeadError`."""
    refusals: list[str] = []

    async def takes(*extras: str) -> bool:
        server.dialect = Dialect(model=model, extras=frozenset(extras))
        try:
            await server.ask(_EVERYTHING, 1)
        except base.EngineDeadError:
            raise
        except base.EngineError as error:
            refusals.append(str(error))
            return False
        return True

    if await takes(*EXTRAS):
        return frozenset(EXTRAS)
    if not await takes():
        raise base.EngineDeadError(
            f"The server is ready but answers no chat request. {refusals[-1]} Pecia sends a picture and takes the"
            " answer as a stream."
        )
    taken = frozenset([extra for extra in EXTRAS if await takes(extra)])
    log.warning("engine_server_lacks", options=sorted(frozenset(EXTRAS) - taken))
    return taken


class Prices:
    """Prompt lengths counted by the server: equal picture sizes with equal text have equal lengths."""

    def __init__(self) -> None:
        self.drifted = 0
        self._counted: OrderedDict[Hashable, int] = OrderedDict()

    def exact(self, request: base.EngineRequest) -> int | None:
        """Return the prompt's length, or None if no such prompt was counted yet."""
        return self._counted.get(_shape(request))

    def learn(self, request: base.EngineRequest, counted: int) -> None:
        """Compare the predicted length with the server's count; a difference is logged, as the budget depends on it."""
        predicted = self.exact(request)
        if predicted is not None and predicted != counted:
            self.drifted += 1
            log.error(
                "cost_drifted", request=request.id, predicted=predicted, counted=counted, drifted=self.drifted
            )
        self._counted[_shape(request)] = counted
        if len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)


def _shape(request: base.EngineRequest) -> Hashable:
    """Return the properties that determine the prompt's length."""
    sizes = tuple(image.shape[:2] for image in request.images)
    return sizes, hash(request.instruction), request.adapter
