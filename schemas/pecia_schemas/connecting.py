"""How Postgres is reached by psycopg, with or without SQLAlchemy, and how every wait for it is bounded."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")

CONNECT_ARGS = {
    "connect_timeout": 5,
    # A half-open connection is noticed within 15 s.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # Behind a pooler each transaction may run on another server connection, which does not know them.
    "prepare_threshold": None,
}
"""Passed to psycopg and libpq on every connection."""
PREPARED_AFTER: Final = 5
"""How often a statement runs on one connection before it is prepared there: half of what Postgres does is planning."""
BACKEND: Final = "SELECT pg_backend_pid()"
"""Asks for the number that a direct connection knows already; a pooler tells a number of its own."""

_INTERVAL_S = 0.1
"""How often psycopg looks up from waiting."""
_BEYOND_S = 0.5
"""What the server has beyond its own limit to say that it was reached."""
_ALIVE_S = 4.0
"""What a connection that comes out of the pool has to answer the pool's ping; its work may have longer."""

# As SQLAlchemy reads it for the fleet: more of a password is taken as it stands than libpq does.
_URL = re.compile(
    r"""
    [\w+]+://
    (?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?
    (?:(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?)?
    (?:/(?P<dbname>[^?]*))?
    (?:\?(?P<query>.*))?
    """,
    re.VERBOSE,
)
_PORT = re.compile(r"(?P<host>.*?)(:(?P<port>\d+))?")


def parameters_of(database_url: str) -> dict[str, str]:
    """Return libpq's parameters that a URL names. Raises `ValueError` if it is no URL."""
    if (read := _URL.match(database_url)) is None:
        raise ValueError("no URL of a database")
    parts = read.groupdict()
    query, host = parts.pop("query"), parts.pop("ipv6") or parts.pop("host")
    found = {name: unquote(part) for name, part in (parts | {"host": host}).items() if part}
    found |= (asked := dict(parse_qsl(query or "")))
    if "host" in asked:  # one, several, or `host=a:1&host=b:2`
        hosts = [_PORT.fullmatch(value) for name, value in parse_qsl(query or "") if name == "host"]
        found["host"] = ",".join(host["host"] for host in hosts if host)
        if any(host and host["port"] for host in hosts):
            found["port"] = ",".join(host["port"] or "" for host in hosts if host)
    return found


def begin_within(patience: timedelta) -> str:
    """Return what begins a transaction in which the server ends a statement, or the silence between two, by itself.

    That costs no round trip, and leaves nothing on a server connection that a pooler gives to others next.
    """
    limit_ms = int(patience.total_seconds() * 1000)
    return (
        f"BEGIN; SET LOCAL statement_timeout = {limit_ms};"
        f" SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"
    )


class _Patient:
    """How long a connection waits for an answer."""

    patience_s = _ALIVE_S

    def be_patient(self, patience: timedelta) -> None:
        """Wait for what a statement may take on the server."""
        self.patience_s = patience.total_seconds() + _BEYOND_S

    def be_pinged(self, patience: timedelta) -> None:
        """Wait for what the pool's ping may take."""
        self.patience_s = min(_ALIVE_S, patience.total_seconds() + _BEYOND_S)


class PatientConnection(_Patient, psycopg.Connection[Any]):
    """Waits for an answer no longer than `patience_s`."""

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """Wait for libpq, and close the connection if it stays silent."""
        try:
            return super().wait(gen, interval, timeout or self.patience_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


class PatientAsyncConnection(_Patient, psycopg.AsyncConnection[Any]):
    """Its twin for a loop."""

    async def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:  # noqa: ASYNC109
        """Wait for libpq, and close the connection if it stays silent."""
        try:
            return await super().wait(gen, interval, timeout or self.patience_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


def _close_unanswered(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Close a connection on which a statement is still under way after an error: it was given up."""
    if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
        connection.pgconn.finish()
