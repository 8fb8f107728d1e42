"""What clients of both kinds hold of a fleet's stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from obstore.exceptions import BaseError

from pecia.access import AccessKeys
from pecia.accounts import Accounts
from pecia.configuration import client_name
from pecia.endpoints import Deliveries, Endpoints
from pecia.errors import ConfigurationError, PayloadStoreUnavailableError
from pecia.listing import DeadParts
from pecia.statements import Awaitable, Blocking
from pecia.store import Store
from pecia.waiting import Backlog
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import ClientSettings

if TYPE_CHECKING:
    from pecia.review.statements import Reviews
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
        for of_the_former in ("transitions", "purging", "reviews"):
            vars(self).pop(of_the_former, None)
        self.endpoints = Endpoints(self._database, self.keys, client=client, tenant=tenant)
        self.deliveries = Deliveries(self._database, tenant=tenant)

    @cached_property
    def transitions(self) -> Transitions[D]:
        """What moves jobs. Who only reads or submits does without it, and without SQLAlchemy, which is slow to load."""
        from pecia.transitions import Transitions  # noqa: PLC0415

        return Transitions(self._database, client=self.client)

    @cached_property
    def reviews(self) -> Reviews[D]:
        """What people decide about pages; by SQLAlchemy too."""
        from pecia.review.statements import Reviews  # noqa: PLC0415

        return Reviews(self._database, self.keys, client=self.client)

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


@contextmanager
def store_answers() -> Iterator[None]:
    """Raise what the payload store raises as `PayloadStoreUnavailableError`."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise PayloadStoreUnavailableError(
            f"The payload store does not answer ({type(error).__name__}): check PECIA_PAYLOAD_URL and its credentials."
        ) from error
