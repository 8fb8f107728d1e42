"""What the clients of a fake fleet hold open: nothing, but it looks like the three stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from pecia.aio.connections import AsyncAuditTrail, AsyncConnections
from pecia.aio.database import AsyncDatabase
from pecia.aio.purging import AsyncPurging
from pecia.backlog import Backlog
from pecia.connections import AuditTrail, Connections
from pecia.database import Database
from pecia.purging import Purging
from pecia.testing.bus import AsyncMemoryBus, MemoryBus, Switchboard
from pecia.testing.database import AsyncMemoryDatabase, MemoryDatabase
from pecia.testing.erasing import MemoryPurgingSteps
from pecia.testing.memory import Memory
from pecia.testing.payloads import MemoryPayloads
from pecia.testing.reports import MemoryAccounts, MemoryDeadParts, MemoryTrailPages
from pecia.testing.stores import MemoryStore, MemoryTransitions
from pecia.testing.webhooks import MemoryDeliveries, MemoryEndpoints
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane


class MemoryTrail(MemoryTrailPages[Any], AuditTrail):
    """The audit trail of a fake fleet."""


class AsyncMemoryTrail(MemoryTrailPages[Any], AsyncAuditTrail):
    """The same for an asynchronous client."""


class MemoryPurging(MemoryPurgingSteps[Any], Purging):
    """What a client may erase of a fake fleet."""


class AsyncMemoryPurging(MemoryPurgingSteps[Any], AsyncPurging):
    """The same for an asynchronous client."""


class FreshBacklog(Backlog):
    """What waits in the lanes, counted before every submit: that costs nothing here."""

    def is_stale(self, lane: Lane) -> bool:
        """Whether it has to be counted: always."""
        return self.limit(lane) is not None


@dataclass(frozen=True, slots=True)
class Servers:
    """What stands for the three servers of a fake fleet."""

    memory: Memory
    payloads: MemoryPayloads
    switchboard: Switchboard = field(default_factory=Switchboard)


class MemoryConnections(Connections):
    """What a client holds of a fake fleet."""

    def __init__(self, settings: ClientSettings, servers: Servers) -> None:
        super().__init__(settings)
        database = cast("Database", MemoryDatabase(servers.memory))
        self.store = MemoryStore(database, self.keys, client=self.client)
        self.transitions = MemoryTransitions(database, client=self.client)
        self.accounts = MemoryAccounts(database)
        self.dead = MemoryDeadParts(database)
        self.endpoints = MemoryEndpoints(database, self.keys, client=self.client)
        self.deliveries = MemoryDeliveries(database)
        self.trail = MemoryTrail(database)
        self.purging = MemoryPurging(database, client=self.client)
        self.bus = MemoryBus(servers.memory, servers.switchboard)
        self.payloads = servers.payloads
        self.backlog = FreshBacklog(settings.max_backlog)


class AsyncMemoryConnections(AsyncConnections):
    """What an asynchronous client holds of a fake fleet, for the running loop."""

    def __init__(self, settings: ClientSettings, servers: Servers) -> None:
        super().__init__(settings)
        database = cast("AsyncDatabase", AsyncMemoryDatabase(servers.memory))
        self.store = MemoryStore(database, self.keys, client=self.client)
        self.transitions = MemoryTransitions(database, client=self.client)
        self.accounts = MemoryAccounts(database)
        self.dead = MemoryDeadParts(database)
        self.endpoints = MemoryEndpoints(database, self.keys, client=self.client)
        self.deliveries = MemoryDeliveries(database)
        self.trail = AsyncMemoryTrail(database)
        self.purging = AsyncMemoryPurging(database, client=self.client)
        self.bus = AsyncMemoryBus(MemoryBus(servers.memory, servers.switchboard), servers.switchboard)
        self.payloads = servers.payloads
        self.backlog = FreshBacklog(settings.max_backlog)
