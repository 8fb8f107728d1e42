"""What tests ask of the engine that asks a server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import SecretStr

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.openai.engine import OpenAiEngine
from pecia_workers.engines.openai.server import Retries
from pecia_workers.protocol.base import Engine, EngineRequest, Generation
from pecia_workers.protocol.parts import Backoff
from tests.shared.chat_server import ChatServerDouble
from tests.shared.limits import until

WORDS = "Read the prescription of Kim Minji."
KEY = "sesame"
PAGE = np.random.default_rng(1).integers(0, 255, (56, 84, 3), dtype=np.uint8)


def asked(number: int = 0, **changes: Any) -> EngineRequest:
    request = EngineRequest(
        id=f"part-{number}", images=(PAGE,), workload=DocumentType.PRESCRIPTION, instruction=WORDS
    )
    return replace(request, **changes)


def engine_at(server: ChatServerDouble, **settings: Any) -> OpenAiEngine:
    given = {"engine_url": server.url, "engine_api_key": SecretStr(KEY), **settings}
    return OpenAiEngine(
        WorkerSettings(engine="openai", **given),
        Retries(attempts=3, backoff=Backoff(first_s=0.01, longest_s=60)),
    )


@contextmanager
def started(engine: Engine) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.start())
            yield runner
        finally:
            runner.run(engine.stop())


@contextmanager
def at_work(server: ChatServerDouble, **settings: Any) -> Iterator[tuple[asyncio.Runner, OpenAiEngine]]:
    engine = engine_at(server, **settings)
    with started(engine) as runner:
        yield runner, engine


def answer(server: ChatServerDouble, request: EngineRequest | None = None, **settings: Any) -> Generation:
    with at_work(server, **settings) as (runner, engine):
        return runner.run(engine.generate(request or asked()))


async def under_way(server: ChatServerDouble) -> None:
    await until(lambda: server.answering)
