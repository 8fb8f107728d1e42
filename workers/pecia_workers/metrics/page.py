"""`/metrics`, `/healthz` and `/readyz` of one process, from threads of their own."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socket import AF_INET6
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from pecia_workers.metrics.health import Condition, Health

log = structlog.get_logger(__name__)

_PORTS = 16
"""Tried one after the other, so that several processes of one machine can share a setting."""

_Start = Callable[[str, list[tuple[str, str]]], object]


@contextmanager
def serve_page(
    address: str, port: int, health: Health, collectors: Iterable[Collector]
) -> Iterator[int | None]:
    """Serve while the block runs; yields the port: the given one or, if that is taken, one of the next 15.

    None, and a line in the log, if there is none to be had: work goes on without.
    """
    server = _bind(address, port, _application(health, collectors))
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


def _bind(address: str, port: int, application: Any) -> WSGIServer | None:
    kind = _V6Server if ":" in address else ThreadingWSGIServer
    for tried in range(port, port + _PORTS):
        try:
            return make_server(address, tried, application, server_class=kind, handler_class=_Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return None
        except OverflowError:  # past the last port there is
            return None
    return None


class _V6Server(ThreadingWSGIServer):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    """Gives up on a caller that says nothing, and logs no request."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""


def _application(health: Health, collectors: Iterable[Collector]) -> Any:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    metrics = make_wsgi_app(registry)
    checks = {"/healthz": health.live, "/readyz": health.ready}

    def answer(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start)  # type: ignore[no-any-return]
        if check := checks.get(path):
            return _told(check(), start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"There are /metrics, /healthz and /readyz.\n"]

    return answer


def _told(condition: Condition, start: _Start) -> Iterable[bytes]:
    status = "200 OK" if condition.ok else "503 Service Unavailable"
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [f"{condition.reason}\n".encode()]
