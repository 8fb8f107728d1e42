"""A job's task as its row holds it: what may tell of documents is encrypted, the rest is there for SQL to ask for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pecia_schemas.encryption import Keyring


def seal_task(task: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task, as `task_to_json` wrote it, with the schema of its `fields` encrypted."""
    if task.get("fields") is None or keys.current is None:
        return dict(task)
    return {**task, "fields": json.loads(keys.seal(json.dumps(task["fields"]), job_id))}


def unseal_task(stored: Mapping[str, Any], job_id: UUID, keys: Keyring) -> dict[str, Any]:
    """Return the task as it was before `seal_task`. Raises `DecryptionError`."""
    if stored.get("fields") is None:
        return dict(stored)
    return {**stored, "fields": keys.unseal(stored["fields"], job_id)}


def task_digest(kind: str, task: Mapping[str, Any], lane: str, keys: Keyring, key: str | None) -> str:
    """Return what two submits of the same work have in common, and no two others; under a key, if there is one."""
    canonical = json.dumps([kind, task, lane], sort_keys=True, separators=(",", ":")).encode()
    return (
        hashlib.sha256(canonical).hexdigest()
        if key is None
        else keys.fingerprint(canonical, key, purpose="task")
    )
