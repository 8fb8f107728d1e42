"""Which workers run, and which parts none of them can run: on a plain connection, for a command has no loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from pecia_schemas.duty import ON_DUTY, UNSERVED, UNSIGNED, Lack

_UNSERVED = text(UNSERVED)
_ROLES = text(f"SELECT role, count(*) AS number FROM workers WHERE {ON_DUTY} GROUP BY role")  # noqa: S608  a constant

_ENGINES = text(
    f"""
    SELECT name, stages, engine, coalesce(capabilities, '{{}}') AS capabilities FROM workers
    WHERE {ON_DUTY} AND engine IS NOT NULL ORDER BY name
    """  # noqa: S608  a constant
)


_UNSIGNED = text(
    f"""
    SELECT {UNSIGNED} AND EXISTS (SELECT FROM deliveries WHERE state = 'pending' AND endpoint_id IS NULL)
    """  # noqa: S608  a constant
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWorker:
    """A worker that has an engine, as it registered."""

    name: str
    stages: list[str]
    engine: str
    capabilities: Mapping[str, Any]
    """Empty for a worker of an older version."""


def roles_on_duty(connection: Connection) -> dict[str, int]:
    """Return how many workers of each role live."""
    return {row.role: row.number for row in connection.execute(_ROLES)}


def engines_on_duty(connection: Connection) -> list[EngineWorker]:
    """Return the workers that live and have an engine."""
    return [EngineWorker(**row) for row in connection.execute(_ENGINES).mappings()]


def waiting_in_vain(connection: Connection) -> list[Lack]:
    """Return what all queued parts together need that no worker on duty can do."""
    return [Lack(**row) for row in connection.execute(_UNSERVED, {"job_ids": None}).mappings()]


def wait_for_a_secret(connection: Connection) -> bool:
    """Return whether callbacks wait because no webhook worker on duty has the secret to sign them with."""
    return bool(connection.execute(_UNSIGNED).scalar())
