"""Encryption at rest: the keys that client and fleet share, and what they write into the database under them.

AES-256-GCM throughout. No key encrypts anything itself: each payload and each row has a key of its own, derived by HKDF
(RFC 5869), so that no nonce can meet another one under the same key however many there are. Values are bound to the id
of what they belong to: one that is moved to another row is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pydantic import SecretStr

KEY_BYTES = 32
SETTING = "PECIA_ENCRYPTION_KEYS"

_NONCE_BYTES = 12
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENVELOPE = frozenset({"enc", "data"})
_FORM = 'write {"name": "32 bytes in base64"} as JSON, the current key first; `pecia keys new` makes one.'


class DecryptionError(ValueError):
    """What is stored cannot be decrypted with the keys that there are."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class KeyUnavailableError(DecryptionError):
    """It was encrypted under a key that is not among ours."""

    def __init__(self, key: str) -> None:
        super().__init__(key, f"Encrypted under the key {key!r}, which {SETTING} does not hold here: add it.")


class SealBrokenError(DecryptionError):
    """It was changed or moved, or the key of that name is another one."""

    def __init__(self, key: str) -> None:
        super().__init__(
            key,
            f"Not what was encrypted under the key {key!r}: it was damaged, or {SETTING} has another key of that name.",
        )


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys by name. The first encrypts, all decrypt; without any, everything stays as it is."""

    _keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, setting: SecretStr) -> Keyring:
        """Return the keys of the setting. Raises `ValueError` with a sentence that does not show them."""
        return cls(_parsed(setting.get_secret_value())) if setting else cls()

    @property
    def current(self) -> str | None:
        """The key that encrypts; None: nothing is encrypted."""
        return next(iter(self._keys), None)

    def __contains__(self, key: str | None) -> bool:
        return key is None or key in self._keys

    def __iter__(self) -> Iterator[str | None]:
        """Yield every key that something may be stored under, the current one first, None for no key at all."""
        yield from self._keys
        yield None

    def seal(self, written: str, about: UUID | str) -> str:
        """Return JSON as it is to be stored: in an envelope, bound to the id of what it is about, if there is a key."""
        if self.current is None:
            return written
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._row_cipher(self.current, about).encrypt(nonce, written.encode(), _bytes_of(about))
        return json.dumps({"enc": self.current, "data": base64.b64encode(nonce + sealed).decode()})

    def unseal(self, stored: Any, about: UUID | str) -> Any:
        """Return the value that `seal` was given, or whatever was stored without a key.

        Raises `KeyUnavailableError` or `SealBrokenError`.
        """
        key = sealed_under(stored)
        if key is None:
            return stored
        cipher = self._row_cipher(key, about)
        try:
            sealed = base64.b64decode(stored["data"], validate=True)
            return json.loads(_decrypted(cipher, sealed, _bytes_of(about)))
        except (binascii.Error, TypeError, ValueError):
            raise SealBrokenError(key) from None

    def name_of(self, sha256: str, key: str | None) -> str:
        """Return the name, hexadecimal, of a document with that hash; without the key it does not tell the hash."""
        return sha256 if key is None else self.fingerprint(bytes.fromhex(sha256), key, purpose="name")

    def fingerprint(self, content: bytes, key: str, *, purpose: str) -> str:
        """Return the HMAC-SHA-256 of something, in hexadecimal, for one purpose. Raises `KeyUnavailableError`."""
        return hmac.digest(self.derive(key, f"fingerprint {purpose}".encode()), content, "sha256").hex()

    def derive(self, key: str, info: bytes, *, salt: bytes | None = None) -> bytes:
        """Return a key of 32 bytes for one purpose (HKDF-SHA-256). Raises `KeyUnavailableError`."""
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415  the client imports it only if needed
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        if key not in self._keys:
            raise KeyUnavailableError(key)
        return HKDF(SHA256(), length=KEY_BYTES, salt=salt, info=b"pecia " + info).derive(self._keys[key])

    def _row_cipher(self, key: str, about: UUID | str) -> Any:
        return cipher_of(self.derive(key, b"row " + _bytes_of(about)))


def cipher_of(key: bytes) -> Any:
    """Return AES-GCM under a key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  as above

    return AESGCM(key)


def sealed_under(stored: Any) -> str | None:
    """Return the key of an envelope; None for anything else."""
    if isinstance(stored, Mapping) and stored.keys() == _ENVELOPE and isinstance(stored["enc"], str):
        return stored["enc"]
    return None


def new_key() -> str:
    """Return a fresh key, as the setting holds it."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def checked_key_id(key: str) -> str:
    """Return the name of a key. Raises `ValueError` if it is none."""
    if not _KEY_ID.fullmatch(key):
        message = "names a key by 1 to 64 letters, digits, dots, dashes and underscores."
        raise ValueError(message)
    return key


def _parsed(written: str) -> dict[str, bytes]:
    try:
        entries = json.loads(written, object_pairs_hook=_without_repetition)
    except (json.JSONDecodeError, RecursionError):
        entries = None
    if not isinstance(entries, dict) or not entries:
        message = f"holds no keys: {_FORM}"
        raise ValueError(message)
    return {checked_key_id(name): _key(encoded) for name, encoded in entries.items()}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        message = "names a key twice: each name stands for one key."
        raise ValueError(message)
    return dict(pairs)


def _key(encoded: Any) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        message = f"holds something that is no key: {_FORM}"
        raise ValueError(message)
    return key


def _decrypted(cipher: Any, sealed: bytes, bound_to: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  as above

    try:
        opened: bytes = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
    except InvalidTag:
        raise ValueError from None
    return opened


def _bytes_of(about: UUID | str) -> bytes:
    return str(about).encode()
