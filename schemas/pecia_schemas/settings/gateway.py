"""Where the gateway is served, and how much it takes."""

from __future__ import annotations

from pydantic import Field

from pecia_schemas.settings.base import ConnectionSettings


class GatewaySettings(ConnectionSettings):
    """Where the gateway is served, and how much it takes."""

    gateway_port: int = Field(default=8780, ge=1, le=65535)
    """Where `pecia gateway` and `pecia up --gateway` serve HTTP."""
    gateway_address: str = "127.0.0.1"
    """The address it listens on. On another than loopback, let a proxy with TLS stand before it."""
    gateway_max_bytes: int = Field(default=256 * 1024**2, ge=1)
    """Most bytes in the body of a request, all its documents together."""
    gateway_rate: float = Field(default=50, gt=0)
    """Requests a second that each key may make, at each process of the gateway; for a moment twice as many."""
    gateway_streams: int = Field(default=20, ge=1)
    """Streams of events that a key may have open at a time, at each process."""
