"""What one process of a client holds open: Postgres, Redis and the payload store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from obstore.exceptions import BaseError

from pecia import bulk, tracing
from pecia.access import AccessKeys
from pecia.audit import AuditTrail
from pecia.backlog import Backlog
from pecia.bulk import Item, Outcome
from pecia.configuration import client_name, redis_url
from pecia.database import Database
from pecia.dead import DeadParts
from pecia.deliveries import Deliveries
from pecia.endpoints import Endpoints
from pecia.errors import (
    ConfigurationError,
    DatabaseRefusedError,
    PayloadStoreUnavailableError,
    SubmitError,
    UnavailableError,
)
from pecia.statements import Awaitable, Blocking
from pecia.store import Store
from pecia.submission import NewJob, Options
from pecia.tracing import sending
from pecia.usage import Accounts
from pecia.view import Accepted
from pecia.waiting import Deadline
from pecia_schemas.messages import PartMessage
from pecia_schemas.payloads import PayloadStore, payload_named
from pecia_schemas.settings import ClientSettings

if TYPE_CHECKING:
    from pecia.publishing import Announcements, Bus
    from pecia.purging import Purging
    from pecia.transitions import Transitions

D = TypeVar("D", bound=Blocking | Awaitable)

_payload_processes: set[int] = set()
"""Processes, this one and those it was forked from, that have used a payload store."""


class Holdings(Generic[D]):
    """What both kinds of client hold of a fleet's stores. Good for the process that made it."""

    def __init__(self, settings: ClientSettings, database: D) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._database = database
        self.keys = settings.keyring
        self.accounts = Accounts(database)
        self.dead = DeadParts(database)
        self.access = AccessKeys(database)
        self.backlog = Backlog(settings.max_backlog)
        self._name(client_name(settings), None)

    def _name(self, client: str, tenant: str | None) -> None:
        """Note who asks, and whose jobs alone are found; None: everybody's."""
        self.client, self.tenant = client, tenant
        self.store = Store(self._database, self.keys, client=client, tenant=tenant)
        vars(self).pop("transitions", None)  # of the former tenant
        self.endpoints = Endpoints(self._database, self.keys, client=client, tenant=tenant)
        self.deliveries = Deliveries(self._database, tenant=tenant)

    @cached_property
    def transitions(self) -> Transitions[D]:
        """What moves jobs. Who only reads or submits does without it, and without SQLAlchemy, which is slow to load."""
        from pecia.transitions import Transitions  # noqa: PLC0415

        return Transitions(self._database, client=self.client)

    @cached_property
    def payloads(self) -> PayloadStore:
        """The payload store. Its runtime does not survive a fork: a child would wait for its threads for ever."""
        if _payload_processes - {os.getpid()}:
            raise ConfigurationError(
                "This process was forked from one that had already submitted, which the payload store does not "
                "survive: submit for the first time after the fork, or start processes with 'spawn'."
            )
        _payload_processes.add(os.getpid())
        try:
            return PayloadStore.open(
                self._settings.payload_url, self._settings.payload_options, keys=self.keys
            )
        except (BaseError, OSError) as error:
            raise PayloadStoreUnavailableError(
                f"The payload store cannot be opened ({type(error).__name__}): check PECIA_PAYLOAD_URL, "
                "its credentials and permissions."
            ) from error

    @property
    def poll_s(self) -> float:
        """Seconds after which a waiting client looks by itself."""
        return self._settings.poll_interval.total_seconds()

    @property
    def are_inherited(self) -> bool:
        """Whether this process was forked from the one that opened them."""
        return os.getpid() != self._pid


class Connections(Holdings[Database]):
    """The three stores of a fleet, opened when they are first needed."""

    def __init__(self, settings: ClientSettings) -> None:
        url, patience = settings.database_url.get_secret_value(), settings.connect_timeout
        super().__init__(settings, Database(url, connect_timeout=patience))
        self.trail = AuditTrail(self._database)
        self._redis_url = redis_url(settings)

    @cached_property
    def purging(self) -> Purging:
        """What erases jobs, by SQLAlchemy too."""
        from pecia.purging import Purging  # noqa: PLC0415

        return Purging(self._database, client=self.client)

    @cached_property
    def bus(self) -> Bus:
        """Redis. Who only reads does without it, and without its library, which is slow to load."""
        from pecia.publishing import Bus  # noqa: PLC0415

        timeout, window = self._settings.connect_timeout, self._settings.window
        return Bus(self._redis_url, connect_timeout=timeout, window=window)

    def announcements(self, job_ids: Collection[UUID], deadline: Deadline) -> Announcements:
        """Return the news about these jobs, at the client's own polling interval."""
        from pecia.publishing import Announcements  # noqa: PLC0415  brings redis, slow to load

        return Announcements(self.bus, job_ids, poll_s=self.poll_s, deadline=deadline)

    def accept(self, items: Sequence[Item], asked: Options) -> Iterator[Outcome]:
        """Payloads first, then rows, then messages: whatever breaks in between, nothing accepted is lost."""
        prepared = bulk.prepare(items, self.payloads, asked, self.keys)
        new = prepared.new
        with tracing.accepting(len(new)):
            accepted = self._write(new) if new else []
        self.backlog.add(asked.lane, len(new))
        self.publish(bulk.messages(new, accepted))
        return prepared.outcomes(accepted)

    def _write(self, new: Sequence[NewJob]) -> list[Accepted | SubmitError]:
        """Write jobs and return what became of each. What Postgres refuses is halved until the one job is found."""
        try:
            return self.store.accept(new, is_stored=self.holds)
        except DatabaseRefusedError as error:
            if len(new) == 1:
                return [SubmitError(str(error))]
            half = len(new) // 2
            return [*self._write(new[:half]), *self._write(new[half:])]

    def holds(self, payload: str) -> bool:
        """Return whether the payload store holds something of that name."""
        with store_answers():
            return self.payloads.holds(payload_named(payload))

    def remove(self, payload: str) -> None:
        """Take what has that name out of the payload store."""
        with store_answers():
            self.payloads.delete(payload_named(payload))

    def publish(self, messages: Sequence[PartMessage]) -> None:
        """Hand accepted parts to the fleet. What cannot be handed over now, the fleet's relay picks up."""
        if not messages:
            return
        with sending(messages):
            left = self.bus.publish(messages)
        if left:
            with suppress(UnavailableError):  # upkeep misses them in Redis, seconds later
                self.store.leave_to_relay([message.part for message in left])

    def close(self) -> None:
        """Close what is this process's own, and let go of what is its parent's."""
        self._database.dispose(close=not self.are_inherited)
        if not self.are_inherited and "bus" in vars(self):
            self.bus.close()


@contextmanager
def store_answers() -> Iterator[None]:
    """Raise what the payload store raises as `PayloadStoreUnavailableError`."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise PayloadStoreUnavailableError(
            f"The payload store does not answer ({type(error).__name__}): check PECIA_PAYLOAD_URL and its credentials."
        ) from error
