"""Encryption at rest: the key ring of client and fleet, the data key of each job, and data encrypted with it.

Each job has a random data key, which `job_keys` stores wrapped by the ring's current key. It encrypts results, secrets
of the task and the label, and the key of the job's document. The latter is derived from a key of the ring and the
document's content: equal documents are stored once, and only the jobs with the document know its key. Rotating the
ring's key rewraps data keys; without its data key a job is unreadable in any copy.

All encryption is AES-256-GCM. No ring key encrypts data directly: each payload and each row has its own key, derived by
HKDF (RFC 5869), so that a nonce is never reused under the same key. Values are bound to the id of their owner: a value
that was moved to another row is refused.

Files are encrypted in chunks, so that memory never holds a complete file:

    "PECIA" 1 | length and name of the key | salt | chunk, tag | chunk, tag | … | last chunk, tag

The construction is STREAM (Hoang, Reyhanitabar, Rogaway and Vizár, https://eprint.iacr.org/2015/189), as in age: each
file has its own key, derived with its salt. A chunk's nonce is its number and whether it is the last, so that lost,
repeated or swapped chunks do not decrypt, and neither does a file that is cut off after a chunk. Header and name of
the file are authenticated with every chunk.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pydantic import SecretStr
    from typing_extensions import Buffer

KEY_BYTES = 32
SETTING = "PECIA_ENCRYPTION_KEYS"

_NONCE_BYTES = 12
JOB_KEY = "@job"
"""Name of a job's data key in an envelope; no key of a ring has this name."""
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENVELOPE = frozenset({"enc", "data"})
_FORM = 'write {"name": "32 bytes in base64"} as JSON, the current key first; `pecia keys new` makes one.'


class DecryptionError(ValueError):
    """Stored data cannot be decrypted with the available keys."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class KeyUnavailableError(DecryptionError):
    """Data was encrypted with a key that this process lacks."""

    def __init__(self, key: str) -> None:
        missing = f"It is encrypted with the key {key!r}, which {SETTING} lacks here: add it."
        super().__init__(key, "The data key of the job was erased." if key == JOB_KEY else missing)


class SealBrokenError(DecryptionError):
    """Data was changed or moved, or the key of that name is another one."""

    def __init__(self, key: str) -> None:
        found = f"It does not match the key {key!r}"
        super().__init__(key, f"{found}: it was damaged, or {SETTING} has another key of that name.")


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys by name. The first encrypts, all decrypt. Without keys, data stays unencrypted."""

    _keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, setting: SecretStr) -> Keyring:
        """Return the keys of the setting. Raises `ValueError`, whose text does not show them."""
        if not setting:
            return cls()
        try:
            pairs = json.loads(setting.get_secret_value(), object_pairs_hook=tuple)  # arrays are lists
        except (json.JSONDecodeError, RecursionError):
            pairs = None
        if not isinstance(pairs, tuple) or not pairs:
            raise ValueError(f"contains no keys: {_FORM}")
        if len(dict(pairs)) < len(pairs):
            raise ValueError("names a key twice: each name stands for one key.")
        return cls({checked_key_id(name): _key(encoded) for name, encoded in pairs})

    @property
    def current(self) -> str | None:
        """Name of the encrypting key; None if nothing is encrypted."""
        return next(iter(self._keys), None)

    def __contains__(self, key: str | None) -> bool:
        return key is None or key in self._keys

    def __iter__(self) -> Iterator[str | None]:
        """Yield all key names that data may be encrypted with, the current one first, then None for no key."""
        yield from self._keys
        yield None

    def for_new_job(self, job_id: UUID) -> tuple[Keyring, Any]:
        """Return the ring of a new job, whose first key is its data key, and the wrapped data key.

        Without keys, return the same ring and None.
        """
        return self._with_data_key(job_id, {}) if self._keys else (self, None)

    def for_earlier_job(self, job_id: UUID) -> Any:
        """Return a wrapped data key for a job without one, together with all keys that its content may use."""
        return self._with_data_key(job_id, self._keys)[1]

    def _with_data_key(self, job_id: UUID, others: Mapping[str, bytes]) -> tuple[Keyring, Any]:
        held = {JOB_KEY: os.urandom(KEY_BYTES), **others}
        wrapped = self.seal(json.dumps({name: _encoded(key) for name, key in held.items()}), f"{job_id} key")
        return Keyring({**held, **self._keys}), json.loads(wrapped)

    def of_job(self, job_id: UUID, wrapped: Any) -> Keyring:
        """Return the ring of a job, whose first key is its data key; for a job without one, this ring.

        Raises `KeyUnavailableError` or `SealBrokenError`.
        """
        if wrapped is None:
            return self
        held = {name: _key(key) for name, key in self.unseal(wrapped, f"{job_id} key").items()}
        return Keyring(held | {name: key for name, key in self._keys.items() if name not in held})

    def rewrapped(self, wrapped: Any, about: UUID | str) -> str:
        """Return the content of an envelope in one of the current key, as JSON. Raises `DecryptionError`."""
        return self.seal(json.dumps(self.unseal(wrapped, about)), about)

    def of_document(self, sha256: str, key: str) -> Keyring:
        """Return a ring with the key of the document with this hash, derived from the named key, under that name."""
        return Keyring({key: self.derive(key, b"document " + bytes.fromhex(sha256))})

    def secret(self, key: str) -> str:
        """Return a key in base64. Raises `KeyUnavailableError`."""
        if key not in self._keys:
            raise KeyUnavailableError(key)
        return _encoded(self._keys[key])

    @classmethod
    def of_secret(cls, key: str, secret: str) -> Keyring:
        """Return a ring with the one key that `secret` returned. Raises `ValueError`."""
        return cls({key: _key(secret)})

    def seal(self, written: str, about: UUID | str) -> str:
        """Return JSON for storage: with a key, in an encrypted envelope that is bound to the id of its subject."""
        if self.current is None:
            return written
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._row_cipher(self.current, about).encrypt(nonce, written.encode(), _bytes_of(about))
        return json.dumps({"enc": self.current, "data": base64.b64encode(nonce + sealed).decode()})

    def unseal(self, stored: Any, about: UUID | str) -> Any:
        """Return the value that `seal` was given, or a value that was stored without a key.

        Raises `KeyUnavailableError` or `SealBrokenError`.
        """
        key = sealed_under(stored)
        if key is None:
            return stored
        cipher = self._row_cipher(key, about)
        try:
            sealed = base64.b64decode(stored["data"], validate=True)
            nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            return json.loads(_decrypted(cipher, nonce, rest, _bytes_of(about)))
        except (binascii.Error, TypeError, ValueError):
            raise SealBrokenError(key) from None

    def name_of(self, sha256: str, key: str | None) -> str:
        """Return the hexadecimal name of a document with this hash; a keyed name does not reveal the hash."""
        return sha256 if key is None else self.fingerprint(bytes.fromhex(sha256), key, purpose="name")

    def fingerprint(self, content: bytes, key: str, *, purpose: str) -> str:
        """Return the hexadecimal HMAC-SHA-256 of content, for one purpose. Raises `KeyUnavailableError`."""
        return hmac.digest(self.derive(key, f"fingerprint {purpose}".encode()), content, "sha256").hex()

    def derive(self, key: str, info: bytes, *, salt: bytes | None = None) -> bytes:
        """Return a 32-byte key for one purpose (HKDF-SHA-256). Raises `KeyUnavailableError`."""
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
    """Return the key name of an envelope, or None for any other value."""
    if isinstance(stored, Mapping) and stored.keys() == _ENVELOPE and isinstance(stored["enc"], str):
        return stored["enc"]
    return None


def new_key() -> str:
    """Return a new key, in the form of the setting."""
    return _encoded(os.urandom(KEY_BYTES))


def checked_key_id(key: str) -> str:
    """Return the name of a key. Raises `ValueError` if it is invalid."""
    if not _KEY_ID.fullmatch(key):
        raise ValueError("must name keys by 1 to 64 letters, digits, dots, dashes and underscores.")
    return key


def _encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _key(encoded: Any) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"contains an invalid key: {_FORM}")
    return key


def _decrypted(cipher: Any, nonce: bytes, sealed: bytes, bound_to: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  as above

    try:
        opened: bytes = cipher.decrypt(nonce, sealed, bound_to)
    except InvalidTag:
        raise ValueError from None
    return opened


def _bytes_of(about: UUID | str) -> bytes:
    return str(about).encode()


CHUNK = 1024 * 1024
"""Size of a chunk before encryption, in bytes; part of the format."""

_MAGIC = b"PECIA\x01"
_SALT = 16
_TAG = 16
_COUNTER = 11


def sealed_size(size: int, key: str) -> int:
    """Return the size of a file of `size` bytes after encryption."""
    chunks = max(1, -(-size // CHUNK))
    return len(_opening(key)) + _SALT + size + chunks * _TAG


def seal(file: IO[bytes], name: str, keys: Keyring, key: str, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the rest of a file, encrypted with a key and bound to a name. Raises `KeyUnavailableError`."""
    header = _opening(key) + os.urandom(_SALT)
    cipher, bound_to = cipher_of(_file_key(keys, key, header)), header + name.encode()
    yield header
    held, number = file.read(chunk), 0
    while following := file.read(chunk):
        yield cipher.encrypt(_nonce(number, last=False), held, bound_to)
        held, number = following, number + 1
    yield cipher.encrypt(_nonce(number, last=True), held, bound_to)


class Unsealer:
    """Decrypts a file in pieces of any size. All returned bytes are authenticated.

    Only `end` detects that the file is incomplete. Both methods raise `ValueError` without text if the file is not
    authentic; `feed` raises `KeyUnavailableError` without the key.
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
        """Add a piece; return the bytes that it completed."""
        self._pending += piece
        length = len(self._opening) + _SALT
        if not self._header:
            if len(self._pending) < length:
                return b""
            header = bytes(self._pending[:length])
            if not header.startswith(self._opening):
                raise ValueError
            self._cipher, self._header = cipher_of(_file_key(self._keys, self._key, header)), header
            del self._pending[:length]
        opened = []
        # Keeps the last chunk, because only `end` knows that it is the last.
        while len(self._pending) > self._chunk:
            opened.append(self._open(bytes(self._pending[: self._chunk]), last=False))
            del self._pending[: self._chunk]
        return b"".join(opened)

    def end(self) -> bytes:
        """Return the rest, after the last piece."""
        if not self._header:
            raise ValueError
        return self._open(bytes(self._pending), last=True)

    def _open(self, sealed: bytes, *, last: bool) -> bytes:
        nonce = _nonce(self._number, last=last)
        opened = _decrypted(self._cipher, nonce, sealed, self._header + self._name)
        self._number += 1
        return opened


def _opening(key: str) -> bytes:
    """Return the first bytes of a file encrypted with this key."""
    return _MAGIC + bytes([len(key)]) + key.encode()


def _file_key(keys: Keyring, key: str, header: bytes) -> bytes:
    return keys.derive(key, b"file", salt=header[-_SALT:])


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(_COUNTER) + bytes([last])


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_SECRETS = "fields", "instructions", "password", "subject", "url"
"""Members of a task that are encrypted: a subject is a patient, a schema or instructions may reveal what is searched
for in whose documents, and a URL whose document it is.
"""


def seal_task(task: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task from `task_to_json` with `_SECRETS` encrypted if there is a key."""
    secrets = _secrets(task) if keys.current else ()
    sealed = dict(task) | {name: json.loads(keys.seal(json.dumps(task[name]), job_id)) for name in secrets}
    if (source := task.get("source")) is not None:
        sealed["source"] = seal_source(source, job_id, keys)
    return sealed


def unseal_task(stored: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task before `seal_task`. Raises `DecryptionError`."""
    task = dict(stored) | {name: keys.unseal(stored[name], job_id) for name in _secrets(stored)}
    if (source := stored.get("source")) is not None:
        task["source"] = unseal_source(source, job_id, keys)
    return task


def seal_source(source: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the reference to a job's document, with the document's key encrypted."""
    if (secret := source.get("secret")) is None:
        return dict(source)
    return dict(source) | {"secret": json.loads(keys.seal(json.dumps(secret), _of_source(job_id)))}


def unseal_source(stored: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the reference with the key of the document; for files of an earlier version, that is a key of the ring."""
    secret, key = stored.get("secret"), stored.get("key")
    if secret is None and key is None:
        return dict(stored)
    return dict(stored) | {
        "secret": keys.secret(str(key)) if secret is None else keys.unseal(secret, _of_source(job_id))
    }


def _of_source(job_id: UUID) -> str:
    return f"{job_id} document"


def seal_label(label: str | None, job_id: UUID, keys: Keyring) -> Any:
    """Return the label of a job's document, encrypted if there is a key."""
    return label and json.loads(keys.seal(json.dumps(label), _of_label(job_id)))


def unseal_label(stored: Any, job_id: UUID, keys: Keyring) -> str | None:
    """Return the label before `seal_label`. Raises `DecryptionError`."""
    label: str | None = stored and keys.unseal(stored, _of_label(job_id))
    return label


def _of_label(job_id: UUID) -> str:
    """Return the subject to which a label is bound, so that no secret of the task can replace it."""
    return f"{job_id} label"


def _secrets(task: Mapping[str, Any]) -> list[str]:
    return [name for name in _SECRETS if task.get(name) is not None]


def task_digest(kind: str, task: Mapping[str, Any], lane: str, keys: Keyring, key: str | None) -> str:
    """Return a digest that is equal only for submits of the same work; an HMAC if there is a key.

    The password is left out, because the digest outlives it and could be used to guess it. The document is left out if
    it has a URL. Fields that are None are left out, so that fields of later versions do not change the digests of tasks
    without them.
    """
    left_out = ("password", "source") if "url" in task else ("password",)
    compared = {name: value for name, value in task.items() if value is not None and name not in left_out}
    canonical = _CANONICAL.encode([kind, compared, lane]).encode()
    if key is None:
        return hashlib.sha256(canonical).hexdigest()
    return keys.fingerprint(canonical, key, purpose="task")
