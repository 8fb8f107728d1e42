"""The document that a job was given, on its way back to a client: for results that show its pages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import SecretStr

from pecia.errors import DocumentGoneError, InvalidSettingError, PayloadStoreUnavailableError
from pecia_schemas.encryption import DecryptionError, Keyring, unseal_task
from pecia_schemas.media import PayloadRef

if TYPE_CHECKING:
    from pecia_schemas.payloads import PayloadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """Where a job's document is, and what opens it."""

    job_id: UUID
    payload: PayloadRef
    password: SecretStr | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any], keys: Keyring) -> Original:
        """Return the document of a row of `jobs`.

        Raises `DocumentGoneError` if it is not kept any more, `InvalidSettingError` if its password is encrypted under
        a key that is not here.
        """
        job_id = row["id"]
        if row["payload_released_at"] is not None or row["task"].get("source") is None:
            raise DocumentGoneError(job_id)
        try:
            task = unseal_task(row["task"], job_id, keys)
        except DecryptionError as error:
            raise InvalidSettingError(f"A document cannot be read. {error}") from None
        password = task.get("password")
        return cls(
            job_id=job_id,
            payload=PayloadRef.model_validate(task["source"]),
            password=SecretStr(password) if password else None,
        )


@contextmanager
def at_hand(original: Original, payloads: PayloadStore) -> Iterator[Path]:
    """Yield the document as a file, verified and decrypted, which is gone when the block ends.

    Raises `DocumentGoneError`, `PayloadStoreUnavailableError` or `InvalidSettingError`.
    """
    with tempfile.TemporaryDirectory(prefix="pecia-document-") as scratch:
        yield _fetched(original, payloads, Path(scratch) / "document")


def _fetched(original: Original, payloads: PayloadStore, target: Path) -> Path:
    from obstore.exceptions import BaseError  # noqa: PLC0415  slow to load, as the store is

    from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, verify  # noqa: PLC0415

    in_place = payloads.path_of(original.payload)
    try:
        if in_place is not None:
            verify(in_place, original.payload)
            return in_place
        payloads.fetch(original.payload, target)
    except (PayloadMissingError, PayloadCorruptError):
        raise DocumentGoneError(original.job_id) from None
    except DecryptionError as error:
        raise InvalidSettingError(f"A document cannot be read. {error}") from None
    except (BaseError, OSError) as error:
        raise PayloadStoreUnavailableError(
            f"A document cannot be fetched ({type(error).__name__}): check PECIA_PAYLOAD_URL and its credentials."
        ) from None
    return target
