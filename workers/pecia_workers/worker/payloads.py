"""Payloads as files on this machine, each verified once, so that decoding processes can open them by path."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore, verify
from pecia_workers.worker.attempts import waiting

SPOOL_BYTES = 4 * 1024**3
"""How much a worker keeps of what it fetched from S3, in bytes; what is in use stays in any case."""

SWEPT_EVERY = timedelta(seconds=10)
"""How often a worker looks whether its copies are of documents that are erased, or decrypted and read no more."""

_MOST_COPIES = 1_000
"""How many payloads are remembered, so that neither memory nor the look for what may go grows with small documents."""


@dataclass(slots=True)
class _Copy:
    path: Path
    size: int
    owned: bool
    decrypted: bool
    users: int = 0
    idle: bool = False
    """Whether it has not been read since a sweep."""
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)
    verified: bool = False


class Spool:
    """The payloads a worker has at hand. A directory store is read in place, S3 is copied to `directory`.

    Encrypted ones are decrypted into it, and removed by the second sweep after they were read last: the pages of a
    document come one after the other.
    """

    def __init__(self, store: PayloadStore, directory: Path, *, most_bytes: int = SPOOL_BYTES) -> None:
        self._store = store
        self._directory = directory
        self._most_bytes = most_bytes
        self._copies: OrderedDict[str, _Copy] = OrderedDict()

    @asynccontextmanager
    async def open(self, reference: PayloadRef) -> AsyncIterator[Path]:
        """Yield the path of a verified payload, which stays there until the block ends.

        Raises `PayloadMissingError`, `PayloadCorruptError` or `KeyUnavailableError`.
        """
        key = reference.sha256
        if key not in self._copies:
            here = self._store.path_of(reference)
            path = here or self._directory / key
            self._copies[key] = _Copy(
                path, reference.size, owned=not here, decrypted=reference.key is not None
            )
        self._copies.move_to_end(key)
        copy = self._copies[key]
        copy.users += 1
        copy.idle = False
        try:
            with waiting():
                async with copy.ready:
                    if not copy.verified and copy.owned:
                        await self._store.download(reference, copy.path)
                    elif not copy.verified:
                        await asyncio.to_thread(verify, copy.path, reference)
                    copy.verified = True
            yield copy.path
        finally:
            copy.users -= 1
            if not copy.users and not copy.verified:
                self._forget(key)
            excess = sum(one.size for one in self._copies.values()) - self._most_bytes
            for unused in [name for name, one in self._copies.items() if not one.users]:
                if excess <= 0 and len(self._copies) <= _MOST_COPIES:
                    break
                excess -= self._copies[unused].size
                self._forget(unused)

    async def sweep(self, unheld: Callable[[Collection[str]], Awaitable[set[str]]]) -> None:
        """Remove copies that are not being read: decrypted ones, and those that `unheld` names, which no job holds."""
        for key, copy in list(self._copies.items()):
            if copy.decrypted and not copy.users:
                if copy.idle:
                    self._forget(key)
                copy.idle = True
        idle = [key for key, copy in self._copies.items() if copy.owned and not copy.users]
        for key in await unheld(idle) if idle else ():
            if (idler := self._copies.get(key)) and not idler.users:
                self._forget(key)

    def _forget(self, key: str) -> None:
        copy = self._copies.pop(key)
        if copy.owned:
            copy.path.unlink(missing_ok=True)


async def keep_swept(spool: Spool, unheld: Callable[[Collection[str]], Awaitable[set[str]]]) -> None:
    """Sweep the spool now and then, for ever. While Postgres is away it is unknown what is held: then it rests."""
    while True:
        await asyncio.sleep(SWEPT_EVERY.total_seconds())
        with outage_suppressed():
            await spool.sweep(unheld)
