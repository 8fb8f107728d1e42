"""A job's task as its row holds it: what may tell of documents is encrypted, the rest is there for SQL to ask for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pecia_schemas.encryption import Keyring

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_SECRETS = "fields", "instructions", "password", "url"
"""What of a task is encrypted: a schema or instructions may tell what is looked for about whom, a URL whose document
it is."""


def seal_task(task: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task, as `task_to_json` wrote it, with `_SECRETS` encrypted where there is a key."""
    return dict(task) | {
        name: json.loads(keys.seal(json.dumps(task[name]), job_id)) for name in _secrets(task) if keys.current
    }


def unseal_task(stored: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task as it was before `seal_task`. Raises `DecryptionError`."""
    return dict(stored) | {name: keys.unseal(stored[name], job_id) for name in _secrets(stored)}


def seal_label(label: str | None, job_id: UUID, keys: Keyring) -> Any:
    """Return what a job's document is called, encrypted where there is a key."""
    return label and json.loads(keys.seal(json.dumps(label), _of_label(job_id)))


def unseal_label(stored: Any, job_id: UUID, keys: Keyring) -> str | None:
    """Return the label as it was before `seal_label`. Raises `DecryptionError`."""
    label: str | None = stored and keys.unseal(stored, _of_label(job_id))
    return label


def _of_label(job_id: UUID) -> str:
    """Return what the label is bound to, so that no secret of the task can be put in its place."""
    return f"{job_id} label"


def _secrets(task: Mapping[str, Any]) -> list[str]:
    return [name for name in _SECRETS if task.get(name) is not None]


def task_digest(kind: str, task: Mapping[str, Any], lane: str, keys: Keyring, key: str | None) -> str:
    """Return what two submits of the same work have in common, and no two others; under a key, if there is one.

    A password is no part of it: the digest outlives it, and could be tried for it. Nor is what came from a URL, nor
    what is None: a field that a later version adds leaves the digests of those who do not use it as they were.
    """
    left_out = ("password", "source") if "url" in task else ("password",)
    compared = {name: value for name, value in task.items() if value is not None and name not in left_out}
    canonical = _CANONICAL.encode([kind, compared, lane]).encode()
    return (
        hashlib.sha256(canonical).hexdigest()
        if key is None
        else keys.fingerprint(canonical, key, purpose="task")
    )
