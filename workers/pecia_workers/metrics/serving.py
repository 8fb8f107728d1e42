"""The page of each kind of process, if the settings give it a port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from redis.exceptions import RedisError

from pecia_workers.broker.connection import connect
from pecia_workers.engines.gpus import visible_gpus
from pecia_workers.ledger.database import OUTAGE, answers
from pecia_workers.metrics.declared import FLEET, REGISTRY, WORKER
from pecia_workers.metrics.gpus import gpu_collector
from pecia_workers.metrics.health import PULSE, Health, WorkerHealth
from pecia_workers.metrics.page import serve_page

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prometheus_client.registry import Collector
    from redis import Redis

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.metrics.health import Holder


@contextmanager
def worker_page(
    settings: WorkerSettings, role: str, holder: Holder, queues: Sequence[str]
) -> Iterator[int | None]:
    """Serve the page of a worker that takes parts from these lists; yields its port, None without one."""
    if not settings.metrics_port:
        yield None
        return
    redis = connect(settings.redis_url.get_secret_value())
    health = WorkerHealth(
        holder,
        backlog=partial(_backlog, redis, queues),
        database_answers=lambda: not OUTAGE.is_on and answers(settings.database_url.get_secret_value()),
        hold_limit_s=(settings.part_timeout + settings.lease).total_seconds(),
    )
    gpus = gpu_collector(gpu.handle for gpu in visible_gpus()) if role == "engine" else None
    health.watch()
    with _page(settings, role, health, [gpus] if gpus else []) as port:
        yield port


def service_page(
    settings: WorkerSettings, role: str, *, fleet: bool = False
) -> AbstractContextManager[int | None]:
    """Serve the page of a process without parts; `fleet`: one that looks up what concerns all of them."""
    if not settings.metrics_port:
        return nullcontext()
    return _page(settings, role, PULSE, [FLEET] if fleet else [])


def _page(
    settings: WorkerSettings, role: str, health: Health, collectors: Sequence[Collector]
) -> AbstractContextManager[int | None]:
    WORKER.info({"role": role, "version": version("pecia")})
    own = (REGISTRY, ProcessCollector(registry=None))
    return serve_page(settings.metrics_address, settings.metrics_port, health, [*own, *collectors])


def _backlog(redis: Redis, queues: Sequence[str]) -> int | None:
    """Return how many messages wait in these lists; None while Redis does not tell."""
    try:
        with redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.llen(queue)
            return int(sum(pipe.execute()))
    except RedisError:
        return None
