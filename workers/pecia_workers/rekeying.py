"""Everything that is stored, under the current encryption key: document by document, then row by row.

It can be broken off at any moment and begun again: what is under the current key already is passed over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import PayloadRef
from pecia_schemas.encryption import DecryptionError, Keyring
from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, PayloadStore
from pecia_workers.ledger.rekeying import (
    PAYLOADS,
    RESULTS,
    REVISIONS,
    SECRETS,
    TASKS,
    Rows,
    move_payload,
    payloads_due,
    reseal,
    spans,
)

Told = Callable[[int], None]


@dataclass(slots=True)
class Rekeyed:
    """What was done, and what was left."""

    payloads: int = 0
    tasks: int = 0
    """Jobs with a label, `fields`, instructions, a password or a URL."""
    results: int = 0
    secrets: int = 0
    """Endpoints, each with its secrets."""
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
        self.done.tasks = await self._rows(TASKS, told)
        self.done.results = await self._rows(RESULTS, told) + await self._rows(REVISIONS, told)
        self.done.secrets = await self._rows(SECRETS, told)
        return self.done

    async def _documents(self, told: Told) -> None:
        async for span in spans(self.database, PAYLOADS):
            for document, in_use in await payloads_due(self.database, span, self.keys):
                if in_use:
                    self.done.in_use += 1
                else:
                    await self._document(document)
                told(1)

    async def _document(self, document: PayloadRef) -> None:
        try:
            moved = await self._store_anew(document)
        except (PayloadMissingError, PayloadCorruptError, DecryptionError):
            self.done.refused += 1
        else:
            self.done.payloads += moved
            self.done.in_use += not moved

    async def _store_anew(self, document: PayloadRef) -> bool:
        with tempfile.TemporaryDirectory(prefix="pecia-rekeying-", dir=self.spool) as directory:
            copy = Path(directory) / "document"
            await self.store.download(document, copy)
            stored = await asyncio.to_thread(self.store.put, copy)
        return await move_payload(self.database, document, stored, self.keys, store=self.store)

    async def _rows(self, kind: Rows, told: Told) -> int:
        rewritten = 0
        async for span in spans(self.database, kind):
            resealed, refused = await reseal(self.database, kind, span, self.keys)
            rewritten += resealed
            self.done.refused += refused
            told(resealed + refused)
        return rewritten
