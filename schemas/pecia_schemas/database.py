"""How to reach Postgres: one place that turns a setting into what SQLAlchemy wants."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.engine import URL


def sqlalchemy_url(database_url: str) -> URL:
    """Return the URL with our driver, psycopg 3, which serves the synchronous and the asynchronous engine alike."""
    url = make_url(database_url)
    return url.set(drivername="postgresql+psycopg")


CONNECT_ARGS = {
    "connect_timeout": 5,
    # A half-open connection is noticed within 15 s.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Passed to libpq on every connection."""
