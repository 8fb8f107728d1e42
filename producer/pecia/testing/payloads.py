"""The documents of a fake fleet: the real payload store over memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from pecia.testing.memory import Memory
from pecia_schemas.encryption import Keyring
from pecia_schemas.payloads import Deposit, PayloadStore, key_of
from pecia_schemas.references import PayloadRef


@dataclass(frozen=True)
class MemoryPayloads(PayloadStore):
    """Documents by content, and none while the store is away."""

    memory: Memory

    @classmethod
    def over(cls, memory: Memory) -> MemoryPayloads:
        """Return an empty store."""
        return cls(MemoryStore(), None, Keyring(), memory)

    def deposit(self, source: str | os.PathLike[str] | bytes | IO[bytes]) -> Deposit:
        """Store a document as the real store does."""
        self._check()
        return super().deposit(source)

    async def deposit_async(self, file: IO[bytes]) -> Deposit:
        """Store a document as the real store does."""
        self._check()
        return await super().deposit_async(file)

    def holds(self, reference: PayloadRef) -> bool:
        """Return whether there is a document of that name."""
        self._check()
        return super().holds(reference)

    async def holds_async(self, reference: PayloadRef) -> bool:
        """Return whether there is a document of that name."""
        self._check()
        return await super().holds_async(reference)

    def delete(self, reference: PayloadRef) -> None:
        """Remove a document; one that is not there is no error."""
        self._check()
        super().delete(reference)

    async def delete_async(self, reference: PayloadRef) -> None:
        """Remove a document; one that is not there is no error."""
        self._check()
        await super().delete_async(reference)

    def fetch(self, reference: PayloadRef, target: Path) -> None:
        """Copy a document to a new file."""
        self._check()
        super().fetch(reference, target)

    def content(self, reference: PayloadRef) -> bytes:
        """Return a document's bytes. Raises `FileNotFoundError` if it is not there."""
        return bytes(obstore.get(self._store, key_of(reference)).bytes())

    def _check(self) -> None:
        if self.memory.lacks("payloads"):
            raise GenericError("the test has taken it away")
