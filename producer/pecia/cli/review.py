"""`pecia review`: pages beside their text, in a browser on this machine."""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
import sys
from typing import Annotated

import typer
import uvicorn

from pecia.cli import endings, values
from pecia.cli.certify import Jobs, Seed, Since, client_settings, listing
from pecia.cli.endings import Ending
from pecia.review.app import Work, make_app

_GRACE_S = 3


def review(
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="An address of this machine alone.")] = "127.0.0.1",
    job: Jobs = None,
    metadata: values.OnlyWith = None,
    since: Since = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="N pages drawn at random, doubtful or not, for `pecia certify`."
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Correct what is in doubt, beside the pages' pictures, in a browser on this machine, until SIGTERM or Ctrl-C.

    Open the address that is printed. It has a secret in it: who knows it can read and correct results here.

    Example: `pecia review --since 7d`
    """
    settings = client_settings()
    work = Work(listing=listing(metadata, since), job_ids=tuple(job or ()), sample=sample, seed=seed)
    token = secrets.token_urlsafe(32)
    with _listener(host, port) as listener:
        # A line for each request would put the token and ids into the log.
        config = uvicorn.Config(
            make_app(settings, token, work),
            access_log=False,
            server_header=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_S,
        )
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Review: http://{shown}:{listener.getsockname()[1]}/{token}/")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as the gateway
        uvicorn.Server(config).run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise typer.BadParameter(
            "name 127.0.0.1 or ::1: anyone who can open the address can read results", param_hint="--host"
        )
    try:
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # noqa: PLR2004  IPv6
        return socket.create_server((str(address), port), family=family)
    except OSError as error:
        endings.complain(f"the review cannot listen on {host}, port {port}: {error.strerror}.")
        raise typer.Exit(Ending.UNAVAILABLE) from None
