"""Everything that is stored, under the current encryption key: document by document, then row by row.

It can be broken off at any moment and begun again: what is under the current key already is passed over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, PayloadStore
from pecia_workers.ledger.rekeying import (
    Batch,
    PayloadDue,
    move_payload,
    payloads_due,
    reseal_results,
    reseal_schemas,
)

_AT_ONCE = 100
_FIRST = UUID(int=0)

Told = Callable[[int], None]


class _Reseal(Protocol):
    def __call__(
        self, database: AsyncEngine, keys: Keyring, *, after: UUID, limit: int
    ) -> Awaitable[Batch]: ...


@dataclass(slots=True)
class Rekeyed:
    """What was done, and what was left."""

    payloads: int = 0
    schemas: int = 0
    """Tasks with `fields`."""
    results: int = 0
    in_use: int = 0
    """Documents that were left because a job that needs them is not over."""
    refused: int = 0
    """Documents and rows that are missing, damaged, or under a key that is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeying:
    """Brings everything under the current one of `keys`, beside a fleet that works."""

    database: AsyncEngine
    store: PayloadStore
    keys: Keyring
    spool: Path | None = None
    """Where decrypted documents lie for a moment; None: the temporary directory."""
    done: Rekeyed = field(default_factory=Rekeyed)

    async def run(self, told: Told) -> Rekeyed:
        """Go through all; `told` hears how many things were seen to. Raises what the stores raise if they are away."""
        await self._documents(told)
        self.done.schemas = await self._rows(reseal_schemas, told)
        self.done.results = await self._rows(reseal_results, told)
        return self.done

    async def _documents(self, told: Told) -> None:
        after = ""
        while due := await payloads_due(self.database, self.keys, after=after, limit=_AT_ONCE):
            for one in due:
                await self._document(one)
                told(1)
            after = due[-1].reference.sha256

    async def _document(self, due: PayloadDue) -> None:
        if due.in_use:
            self.done.in_use += 1
            return
        try:
            moved = await self._store_anew(due)
        except (PayloadMissingError, PayloadCorruptError, DecryptionError):
            self.done.refused += 1
        else:
            self.done.payloads += moved
            self.done.in_use += not moved

    async def _store_anew(self, due: PayloadDue) -> bool:
        with tempfile.TemporaryDirectory(prefix="pecia-rekeying-", dir=self.spool) as directory:
            copy = Path(directory) / "document"
            await self.store.download(due.reference, copy)
            stored = await asyncio.to_thread(self.store.put, copy)
        return await move_payload(self.database, due.reference, stored, self.keys, store=self.store)

    async def _rows(self, reseal: _Reseal, told: Told) -> int:
        rewritten, after = 0, _FIRST
        while (batch := await reseal(self.database, self.keys, after=after, limit=_AT_ONCE)).last:
            rewritten += batch.rewritten
            self.done.refused += batch.refused
            after = batch.last
            told(batch.rewritten + batch.refused)
        return rewritten
