"""Files encrypted chunk by chunk, so that neither writing nor reading one holds it in memory.

    "PECIA" 1 | length and name of the key | salt | chunk, tag | chunk, tag | … | last chunk, tag

The construction is STREAM (Hoang, Reyhanitabar, Rogaway and Vizár, https://eprint.iacr.org/2015/189), as age uses it:
each file has a key of its own, derived with its salt; a chunk's nonce is its number and whether it is the last one, so
that chunks that were lost, repeated or swapped do not decrypt, nor does a file that was cut at a chunk's end. Header
and name of the file are authenticated with every chunk.
"""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

from pecia_schemas.encryption import Keyring, cipher_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

CHUNK = 1024 * 1024
"""Bytes of a chunk before encryption; part of the format."""

_MAGIC = b"PECIA\x01"
_SALT = 16
_TAG = 16
_COUNTER = 11


def sealed_size(size: int, key: str) -> int:
    """Return how many bytes a file of that size has once it is encrypted."""
    chunks = max(1, -(-size // CHUNK))
    return len(_opening(key)) + _SALT + size + chunks * _TAG


def seal(file: IO[bytes], name: str, keys: Keyring, key: str, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield what is left of a file, encrypted under a key and bound to a name. Raises `KeyUnavailableError`."""
    header = _opening(key) + os.urandom(_SALT)
    cipher, bound_to = cipher_of(_key(keys, key, header)), header + name.encode()
    yield header
    held, number = file.read(chunk), 0
    while following := file.read(chunk):
        yield cipher.encrypt(_nonce(number, last=False), held, bound_to)
        held, number = following, number + 1
    yield cipher.encrypt(_nonce(number, last=True), held, bound_to)


class Unsealer:
    """Decrypts a file as it comes, in pieces of any size. What it returns was found to be genuine, up to there.

    Only `end` knows that nothing is missing. Both raise `ValueError`, without a word, if the file is not what was
    sealed; `feed` raises `KeyUnavailableError` without the key.
    """

    def __init__(self, name: str, keys: Keyring, key: str, *, chunk: int = CHUNK) -> None:
        self._opening = _opening(key)
        self._keys, self._key = keys, key
        self._name = name.encode()
        self._chunk = chunk + _TAG
        self._pending = bytearray()
        self._header = b""
        self._number = 0

    def feed(self, piece: Buffer) -> bytes:
        """Take a piece; return what it completed."""
        self._pending += piece
        if not self._header and not self._begin():
            return b""
        opened = []
        # The last chunk stays: only the end tells that it is the last.
        while len(self._pending) > self._chunk:
            opened.append(self._open(bytes(self._pending[: self._chunk]), last=False))
            del self._pending[: self._chunk]
        return b"".join(opened)

    def end(self) -> bytes:
        """Return the rest, now that no piece follows."""
        if not self._header:
            raise ValueError
        return self._open(bytes(self._pending), last=True)

    def _begin(self) -> bool:
        length = len(self._opening) + _SALT
        if len(self._pending) < length:
            return False
        header = bytes(self._pending[:length])
        if not header.startswith(self._opening):
            raise ValueError
        self._cipher = cipher_of(_key(self._keys, self._key, header))
        self._header = header
        del self._pending[:length]
        return True

    def _open(self, sealed: bytes, *, last: bool) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  the client imports it only if needed

        try:
            nonce = _nonce(self._number, last=last)
            opened: bytes = self._cipher.decrypt(nonce, sealed, self._header + self._name)
        except InvalidTag:
            raise ValueError from None
        self._number += 1
        return opened


def _opening(key: str) -> bytes:
    """Return what a file under this key begins with."""
    return _MAGIC + bytes([len(key)]) + key.encode()


def _key(keys: Keyring, key: str, header: bytes) -> bytes:
    return keys.derive(key, b"file", salt=header[-_SALT:])


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(_COUNTER) + bytes([last])
