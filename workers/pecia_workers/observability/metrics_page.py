"""The HTTP page of metrics and health of each kind of process, if the settings give it a port."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import version
from socket import AF_INET6
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from pecia_workers.engines.models import visible_gpus
from pecia_workers.ledger.database import OUTAGE, answers
from pecia_workers.observability import metrics
from pecia_workers.queue.lists import connect

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prometheus_client import Metric
    from redis import Redis

    from pecia_schemas.settings import WorkerSettings


class GpuCollector(Collector):
    """Collects GPU metrics from the driver at each request."""

    def __init__(self, nvml: Any, visible: Iterable[str]) -> None:
        """`nvml`: the module `pynvml`; `visible`: ids of the GPUs."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in visible]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, without those that the driver does not report for a card or a slice of one."""
        for handle in self._handles:
            try:
                index = str(self._nvml.nvmlDeviceGetIndex(handle))
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                metrics.GPU_MEMORY.labels(index).set(memory.total)
                metrics.GPU_MEMORY_USED.labels(index).set(memory.used)
                use = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                metrics.GPU_USE.labels(index).set(use)
            except self._nvml.NVMLError:
                continue
        return metrics.GPUS.collect()


def gpu_collector(visible: Iterable[str]) -> GpuCollector | None:
    """Return a collector for these GPUs, or None without a usable driver."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return GpuCollector(nvml, visible)
    except nvml.NVMLError:
        return None


log = structlog.get_logger(__name__)

_PORTS = 16
"""Ports to try in order, so that several processes of one machine can share a setting."""
_HIGHEST_PORT = 65_535

_Start = Callable[[str, list[tuple[str, str]]], object]


@contextmanager
def serve_page(
    address: str, port: int, health: metrics.Health, collectors: Iterable[Collector]
) -> Iterator[int | None]:
    """Serve while the block runs; yields the port: the given one or, if that is taken, one of the next 15.

    Yields None, and logs it, if none of them is free: the process works without a page.
    """
    application = _application(health, collectors)
    kind = _V6Server if ":" in address else ThreadingWSGIServer
    server = None
    for tried in range(port, min(port + _PORTS, _HIGHEST_PORT + 1)):
        try:
            server = make_server(address, tried, application, server_class=kind, handler_class=_Handler)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break
    if server is None:
        log.error("metrics_page_unavailable", port=port)
        yield None
        return
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics_page", port=server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _V6Server(ThreadingWSGIServer):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    """Request handler with a timeout, without a log of requests."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Log nothing."""


def _application(health: metrics.Health, collectors: Iterable[Collector]) -> Any:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    exposition = make_wsgi_app(registry)
    checks = {"/healthz": health.live, "/readyz": health.ready}

    def answer(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return exposition(environ, start)  # type: ignore[no-any-return]
        if check := checks.get(path):
            condition = check()
            status = "200 OK" if condition.ok else "503 Service Unavailable"
            start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{condition.reason}\n".encode()]
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"There are /metrics, /healthz and /readyz.\n"]

    return answer


def worker_page(
    settings: WorkerSettings, role: str, holder: metrics.Holder, queues: Sequence[str]
) -> AbstractContextManager[int | None]:
    """Serve the page of a worker that claims from these lists; yields its port, or None without one."""
    if not settings.metrics_port:
        return nullcontext()
    redis = connect(settings.redis_url.get_secret_value())
    health = metrics.WorkerHealth(
        holder,
        backlog=partial(_backlog, redis, queues),
        database_answers=lambda: not OUTAGE.is_on and answers(settings.database_url.get_secret_value()),
        hold_limit_s=(settings.part_timeout + settings.lease).total_seconds(),
    )
    gpus = gpu_collector(gpu.handle for gpu in visible_gpus()) if role == "engine" else None
    health.watch()
    return _page(settings, role, health, [gpus] if gpus else [])


def service_page(
    settings: WorkerSettings, role: str, *, fleet: bool = False
) -> AbstractContextManager[int | None]:
    """Serve the page of a process without parts; `fleet`: a process that reads the fleet's figures."""
    if not settings.metrics_port:
        return nullcontext()
    return _page(settings, role, metrics.LIVENESS, [metrics.FLEET] if fleet else [])


def _page(
    settings: WorkerSettings, role: str, health: metrics.Health, collectors: Sequence[Collector]
) -> AbstractContextManager[int | None]:
    metrics.WORKER.info({"role": role, "version": version("pecia")})
    own = (metrics.REGISTRY, ProcessCollector(registry=None))
    return serve_page(settings.metrics_address, settings.metrics_port, health, [*own, *collectors])


def _backlog(redis: Redis, queues: Sequence[str]) -> int | None:
    """Return how many messages wait in these lists; None while Redis does not answer."""
    try:
        with redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.llen(queue)
            return int(sum(pipe.execute()))
    except RedisError:
        return None
