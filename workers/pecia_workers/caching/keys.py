"""What a result is found by: one hash over the pictures, the requests, who reads them and for whom."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.encryption import Keyring
from pecia_workers.engines.base import EngineRequest
from pecia_workers.ledger import ClaimedPart

_WITHOUT_EFFECT: Final = frozenset(
    {"id", "part", "images", "tenant", "priority", "expected_output_tokens", "prepared"}
)
"""What of a request changes nothing in its answer; the images count by their pixels."""


def key_of(
    reader: Mapping[str, Any],
    tenant: Mapping[str, Any],
    requests: Sequence[EngineRequest],
    keyring: Keyring,
    witness: str | None = None,
) -> bytes:
    """Return 32 bytes that two parts share only if all of it is the same. Takes milliseconds for each megapixel.

    `requests` are what the engine is asked at first, about the pictures of the first of them. Under an encryption key
    it is an HMAC: the table alone does not tell whether a given document was ever read.
    """
    described = ({} if witness is None else {"witness": witness}) | {
        "reader": reader,
        "tenant": tenant,
        "requests": [_told(request) for request in requests],
        "pictures": [_picture(image) for image in requests[0].images],
    }
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"), default=asdict).encode()
    if keyring.current is None:
        return hashlib.sha256(canonical).digest()
    return bytes.fromhex(keyring.fingerprint(canonical, keyring.current, purpose="result"))


def tenant_of(part: ClaimedPart, by: str) -> Mapping[str, Any]:
    """Return what jobs have in common that may share results: a value of the metadata key `by`.

    Without such a key everything that the application has told: two of its tenants never differ in nothing. A tenant
    of the gateway shares with itself alone, whatever its metadata say.
    """
    gateway = {"gateway": part.tenant} if part.tenant is not None else {}
    if by and by in part.metadata:
        return {"by": by, "value": part.metadata[by], **gateway}
    return {"client": part.client, "metadata": part.metadata, **gateway}


def _told(request: EngineRequest) -> dict[str, Any]:
    names = [field.name for field in fields(request) if field.name not in _WITHOUT_EFFECT]
    return {name: getattr(request, name) for name in names}


def _picture(image: NDArray[np.uint8]) -> tuple[tuple[int, ...], str]:
    return image.shape, hashlib.sha256(np.ascontiguousarray(image).data).hexdigest()
