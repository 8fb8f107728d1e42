"""A gateway before real stores, and keys for it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from fastapi import FastAPI

from pecia import ClientSettings, Lane
from pecia.accounts import AccessKey, Scope
from pecia.connections import Connections
from pecia.gateway import protocol
from pecia.gateway.app import make_app
from pecia.gateway.identity import GatewayConfiguration
from pecia.web.app import web_page
from pecia_workers.local.process import wait_until
from tests.shared.limits import WAIT_S

ALL = tuple(Scope)


@dataclass
class Gateway:
    """One that listens on this machine."""

    app: FastAPI
    url: str
    connections: Connections
    open_clients: ExitStack = field(default_factory=ExitStack)

    def key(
        self, tenant: str = "clinic", name: str = "app", *, scopes: tuple[Scope, ...] = ALL, **limits: Any
    ) -> tuple[AccessKey, str]:
        """Make a key; return it and what its bearer shows."""
        usual = {"lanes": tuple(Lane), "pages_per_day": None, "pages_in_flight": None, "expires_at": None}
        return self.connections.access.add(tenant=tenant, name=name, scopes=scopes, **(usual | limits))

    def bearer(self, *about: str, **limits: Any) -> httpx2.Client:
        """Return a client that shows a fresh key."""
        _, shown = self.key(*about, **limits)
        return self.showing(shown)

    def showing(self, key: str | None) -> httpx2.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx2.Client(base_url=self.url, headers=headers, timeout=WAIT_S)
        return self.open_clients.enter_context(client)


@contextmanager
def listening(app: Any, connections: int = 100) -> Iterator[int]:
    """Serve an application as the gateway and the review are; yield its port."""
    server = protocol.server(app, connections=connections, port=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), WAIT_S)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


@contextmanager
def serving(settings: ClientSettings, **changes: Any) -> Iterator[Gateway]:
    given: dict[str, Any] = settings.model_dump(exclude={"home"}) | {"gateway_rate": 10_000} | changes
    configuration = GatewayConfiguration(**given)
    app = make_app(configuration, *web_page())
    connections = Connections(settings)
    try:
        with listening(app, configuration.gateway_connections) as port, ExitStack() as open_clients:
            yield Gateway(app, f"http://127.0.0.1:{port}", connections, open_clients)
    finally:
        connections.close()
