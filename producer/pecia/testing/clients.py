"""The clients of a fake fleet: real ones, but for what they connect to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pecia.aio.client import AsyncClient
from pecia.aio.connections import AsyncConnections
from pecia.client import Client
from pecia.connections import Connections
from pecia.testing.connections import AsyncMemoryConnections, MemoryConnections, Servers
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane

_NOWHERE = ("postgresql://fake", "redis://fake", "memory")
_POLL = timedelta(milliseconds=20)


class FakeClient(Client):
    """A client whose stores are a fake fleet's."""

    def __init__(self, settings: ClientSettings, servers: Servers) -> None:
        super().__init__(*_NOWHERE, settings=settings)
        self._servers = servers

    def _connect(self) -> Connections:
        return MemoryConnections(self._settings, self._servers)


class FakeAsyncClient(AsyncClient):
    """An asynchronous client whose stores are a fake fleet's."""

    def __init__(self, settings: ClientSettings, servers: Servers) -> None:
        super().__init__(*_NOWHERE, settings=settings)
        self._servers = servers

    def _connect(self) -> AsyncConnections:
        return AsyncMemoryConnections(self._settings, self._servers)


def settings_of(name: str, max_backlog: Mapping[Lane, int] | None) -> ClientSettings:
    """Return settings that nothing in the environment has a say in."""
    return ClientSettings.model_construct(
        client_name=name, poll_interval=_POLL, max_backlog=dict(max_backlog or {})
    )
