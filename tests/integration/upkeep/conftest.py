"""Upkeep on the tables and on real Redis: one step at a time, or the loop."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from redis import Redis

from pecia_schemas.settings import WorkerSettings
from pecia_workers.queue.lists import Lists
from pecia_workers.upkeep.loop import Stores, Upkeep, open_stores
from tests.shared.http_doubles import at_work

R = TypeVar("R")


@pytest.fixture
def settings_for(database_url: str, redis_url: str) -> Callable[..., WorkerSettings]:
    """Makes settings for this test's stores and an upkeep that looks ten times a second, but for the changes."""

    def make(**changes: Any) -> WorkerSettings:
        usual = {
            "database_url": database_url,
            "redis_url": redis_url,
            "upkeep_interval": timedelta(milliseconds=100),
        }
        return WorkerSettings.model_validate(usual | changes)

    return make


@pytest.fixture
def settings(settings_for: Callable[..., WorkerSettings]) -> WorkerSettings:
    return settings_for()


@pytest.fixture
def run(settings: WorkerSettings) -> Callable[..., Any]:
    """Runs one step once."""

    def run_step(step: Callable[[Stores], Awaitable[R]], settings: WorkerSettings = settings) -> R:
        async def whole() -> R:
            async with open_stores(settings) as stores:
                return await step(stores)

        return asyncio.run(whole())

    return run_step


@pytest.fixture
def keeping() -> Callable[[WorkerSettings], AbstractContextManager[Upkeep]]:
    """Keeps upkeep at work."""
    return lambda settings: at_work(Upkeep(settings))


@pytest.fixture
def claim_all(redis: Redis) -> Callable[..., list[str]]:
    """Claims what waits in `read.normal`, at most `slots`, and returns the parts' ids."""

    numbers = count(1)

    def claim(*, owner: str = "worker", slots: int = 1_000) -> list[str]:
        claimed = Lists(redis).claim(["read.normal"], worker=owner, number=next(numbers), slots=slots)
        return [str(part.part) for part in claimed.parts]

    return claim
