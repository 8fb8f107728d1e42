"""`pecia gateway`: the fleet over HTTP."""

from __future__ import annotations

import signal
import socket
import sys

import typer
import uvicorn

from pecia.cli import endings
from pecia.cli.endings import Ending
from pecia.configuration import resolve
from pecia.errors import InvalidSettingError
from pecia.gateway.app import make_app
from pecia.gateway.identity import GatewayConfiguration
from pecia_schemas.settings import SettingsError, read_settings

_GRACE_S = 3
"""For so long, once it is to stop, requests may end; streams break off."""


def gateway() -> None:
    """Serve the fleet over HTTP to clients with a key, until SIGTERM or Ctrl-C.

    It listens on PECIA_GATEWAY_ADDRESS (loopback) and PECIA_GATEWAY_PORT (8780), without TLS: a proxy has that.
    `pecia access create` makes keys. `pecia up --gateway` serves it too.

    Example: `pecia gateway`
    """
    try:
        asked = read_settings(GatewayConfiguration)
    except SettingsError as error:
        raise InvalidSettingError(str(error)) from None
    stores = resolve(asked, database_url=None, redis_url=None, payload_url=None)
    settings = asked.with_stores(
        database_url=stores.database_url.get_secret_value(),
        redis_url=stores.redis_url.get_secret_value(),
        payload_url=stores.payload_url,
    )
    try:
        family = socket.AF_INET6 if ":" in settings.gateway_address else socket.AF_INET
        address = settings.gateway_address, settings.gateway_port
        listener = socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        where = f"{settings.gateway_address}, port {settings.gateway_port}"
        endings.complain(f"the gateway cannot listen on {where}: {error.strerror}.")
        raise typer.Exit(Ending.UNAVAILABLE) from None
    with listener:
        # A line for each request would put ids and filters into the log.
        config = uvicorn.Config(
            make_app(settings),
            access_log=False,
            server_header=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_S,
        )
        typer.echo(f"Gateway: http://{settings.gateway_address}:{settings.gateway_port}")
        # uvicorn stops at it, and raises it once more when it has stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        uvicorn.Server(config).run(sockets=[listener])
