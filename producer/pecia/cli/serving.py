"""`pecia gateway` and `pecia review`: the fleet over HTTP, and a local web page to review results."""

import ipaddress
import secrets
import signal
import socket
import sys
from typing import Annotated, cast

import typer
from starlette.types import ASGIApp
from typer import BadParameter, Option

from pecia.cli import endings
from pecia.cli.certify import Reviewed, Seed, refuse_gateway
from pecia.cli.endings import Ending
from pecia.cli.values import grouped
from pecia.configuration import read, resolve
from pecia.gateway import app as over_http
from pecia.gateway import protocol
from pecia.gateway.identity import GatewayConfiguration
from pecia.review.app import Work, review_of
from pecia.web.app import web_page


def gateway() -> None:
    """Serve the fleet over HTTP to clients with a key, until SIGTERM or Ctrl-C.

    It listens on PECIA_GATEWAY_ADDRESS (loopback) and PECIA_GATEWAY_PORT (8780) without TLS: a proxy adds it.
    `pecia access create` makes keys. `pecia up --gateway` serves the same API.

    Example: `pecia gateway`
    """
    settings = _settings()
    with _listener(
        "gateway", settings.gateway_address, settings.gateway_port, "PECIA_GATEWAY_PORT"
    ) as listener:
        app = over_http.make_app(settings, *web_page())
        typer.echo(f"Gateway: http://{settings.gateway_address}:{settings.gateway_port}")
        _serve(app, listener, settings.gateway_connections)


@grouped
def review(
    *,
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on; 0: any free port.")] = 0,
    host: Annotated[str, Option(help="Loopback address to listen on.")] = "127.0.0.1",
    reviewed: Reviewed,
    sample: Annotated[
        int | None,
        Option(
            min=1, metavar="N", help="Show N pages drawn at random, doubtful or not, for `pecia certify`."
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Correct doubtful pages beside their pictures, in a browser on this machine, until SIGTERM or Ctrl-C.

    Open the printed address. It contains a secret: anyone who knows it can read and correct results on this machine.

    Example: `pecia review --since 7d`
    """
    settings = _settings()
    refuse_gateway(settings)
    work = Work(listing=reviewed.listing, job_ids=tuple(reviewed.job or ()), sample=sample, seed=seed)
    token = secrets.token_urlsafe(32)
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise BadParameter(
            "use 127.0.0.1 or ::1: anyone who can open the address can read results", param_hint="--host"
        )
    with _listener("review", str(address), port, "--port") as listener:
        app = over_http.make_app(settings, review_of(work, token))
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Review: http://{shown}:{listener.getsockname()[1]}/review/{token}/")
        sys.stdout.flush()
        _serve(app, listener, settings.gateway_connections)


def _settings() -> GatewayConfiguration:
    return cast("GatewayConfiguration", resolve(read(GatewayConfiguration)))


def _listener(what: str, host: str, port: int, chosen_by: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason, *_ = str(error.strerror).split(" (while")  # the standard library repeats the address there
        endings.complain(
            f"the {what} cannot listen on {host}, port {port}: {reason}: choose another by {chosen_by}."
        )
        raise typer.Exit(Ending.UNAVAILABLE) from None


def _serve(app: ASGIApp, listener: socket.socket, connections: int) -> None:
    # uvicorn stops on SIGTERM, and raises the signal once more after it has stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    protocol.server(app, connections=connections).run(sockets=[listener])
