"""What a process opens before it starts: the stores, which let it in or not, and its traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from redis import RedisError

from pecia_schemas import refusals
from pecia_schemas.connecting import verdict_on
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tracing import TracingUnavailableError, exported
from pecia_workers.commands.showing import UNAVAILABLE, refused
from pecia_workers.ledger.database import open_for_questions
from pecia_workers.queue.lists import connect


def admitted_or_exit(settings: WorkerSettings) -> None:
    """Exit 4 with a sentence for each store that refuses us; one that is away may come."""
    if sentences := list(_refusals(settings)):
        raise refused("\n".join(sentences), UNAVAILABLE)


def _refusals(settings: WorkerSettings) -> Iterator[str]:
    url = settings.redis_url.get_secret_value()
    if url:
        try:
            with connect(url) as redis:
                redis.ping()
        except (RedisError, OSError) as error:
            yield from filter(None, [refusals.of_redis(error, url)])
    url = settings.database_url.get_secret_value()
    if url:
        try:
            open_for_questions(url).connect().close()
        except Exception as error:
            if verdict_on(error) is None:
                raise
            yield from filter(None, [refusals.of_postgres(error, url)])


@contextmanager
def traced_or_exit(settings: WorkerSettings, role: str) -> Iterator[None]:
    """Have spans sent during the block, if the settings say so. Exits if what sends them is not installed."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exported(settings, f"pecia-{role}"))
        except TracingUnavailableError as error:
            raise refused(f"PECIA_TRACING {error}", UNAVAILABLE) from None
        yield
