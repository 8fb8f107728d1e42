"""The clients of a fake fleet: real ones, but for what they connect to."""

from __future__ import annotations

from datetime import timedelta

from pecia.aio.client import AsyncClient
from pecia.aio.connections import AsyncConnections
from pecia.client import Client
from pecia.connections import Connections
from pecia.testing.connections import AsyncMemoryConnections, MemoryConnections, Servers
from pecia_schemas.settings import ClientSettings

_NOWHERE = ("postgresql://fake", "redis://fake", "memory")
_POLL = timedelta(milliseconds=20)


class FakeClient(Client):
    """A client whose stores are a fake fleet's."""

    def __init__(self, name: str, servers: Servers) -> None:
        super().__init__(*_NOWHERE, settings=_settings(name))
        self._servers = servers

    def _connect(self) -> Connections:
        return MemoryConnections(self._settings, self._servers)


class FakeAsyncClient(AsyncClient):
    """An asynchronous client whose stores are a fake fleet's."""

    def __init__(self, name: str, servers: Servers) -> None:
        super().__init__(*_NOWHERE, settings=_settings(name))
        self._servers = servers

    def _connect(self) -> AsyncConnections:
        return AsyncMemoryConnections(self._settings, self._servers)


def _settings(name: str) -> ClientSettings:
    """Return settings that nothing in the environment has a say in."""
    return ClientSettings.model_construct(client_name=name, poll_interval=_POLL)
