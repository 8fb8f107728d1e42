"""`pecia webhook`: manages receivers that are notified of all jobs, shows deliveries, and runs a test receiver."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, BadParameter, Option

from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.client import Client
from pecia.configuration import from_environment
from pecia.errors import WebhookVerificationError
from pecia.records import NO_SECRET, Delivery, Endpoint
from pecia.webhooks import verify
from pecia_schemas import running
from pecia_schemas.events import JobNotice, NoticeType
from pecia_schemas.settings import LISTENER_PORT
from pecia_schemas.states import DeliveryState

_MOST_BYTES = 1024 * 1024


class Listener(HTTPServer):
    """Answers 204 to verified requests and 401 to others, and reports both, one request at a time."""

    def __init__(
        self, host: str, port: int, secret: str, heard: Callable[[str, JobNotice | None], None]
    ) -> None:
        """Call `heard` with each request's `webhook-id` and notice, None if its signature is invalid or too old."""
        super().__init__((host, port), _Handler)
        self.secret = secret
        self.heard = heard
        self.handled = 0  # requests that `heard` was called for

    @property
    def url(self) -> str:
        """URL of the listener."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # seconds: a client that connects and sends nothing keeps the others waiting
    server: Listener  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and int(length) <= _MOST_BYTES):
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            notice = verify(self.rfile.read(int(length)), dict(self.headers), self.server.secret)
        except WebhookVerificationError:
            notice = None
        self.server.handled += 1
        self.server.heard(self.headers.get("webhook-id", ""), notice)
        self._answer(HTTPStatus.NO_CONTENT if notice else HTTPStatus.UNAUTHORIZED)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
        """Log no requests, so that only events appear on the terminal."""


_TRY_EVERY_S = 0.2

EndpointId = Annotated[UUID, Argument(metavar="ENDPOINT", help="Full id of an endpoint.")]
OfJob = Annotated[UUID | None, Option("--job", metavar="ID", help="Only about this job.")]
OfEndpoint = Annotated[UUID | None, Option("--endpoint", metavar="ID", help="Only to this endpoint.")]
Since = Annotated[str | None, Option(metavar="WHEN", help="Only deliveries since: 30m, 2h, 7d or a date.")]

webhook = typer.Typer(no_args_is_help=True)


@webhook.command("add")
def add(
    url: Annotated[str, Argument(help="URL to post notices to.")],
    *,
    event: Annotated[
        list[NoticeType] | None, Option(help="Only this event; may be repeated. Default: the ends of jobs.")
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Register a receiver. Its secret is printed once: hand it to the receiver's operator.

    Example: `pecia webhook add https://example.org/pecia --event job.failed --event job.partial`
    """
    with Client() as client:
        _show_secret(client.add_endpoint(url, events=event), as_json=as_json)


@webhook.command("list")
def list_endpoints(*, as_json: output.AsJson = False) -> None:
    """Show the registered receivers and their health.

    Example: `pecia webhook list`
    """
    with Client() as client:
        found = client.endpoints()
    if as_json:
        output.json_lines(found, exclude={"secret"})
        return
    rows: list[Sequence[object]] = []
    for one in found:
        health = f"{one.failures} failures" if one.failures else "well"
        if one.disabled_at:
            health = f"gone since {output.when(one.disabled_at)}"
        elif one.paused_until:
            health = f"paused until {output.when(one.paused_until)}, {one.failures} failures"
        rows.append((one.id, health, one.waiting, ", ".join(one.events), one.url))
    headings = ("endpoint", "state", "waiting", "events", "URL")
    typer.echo(output.fitting(headings, rows, spare=("events", "waiting")))


@webhook.command("remove")
def remove(endpoint: EndpointId) -> None:
    """Remove a receiver and all its deliveries.

    Example: `pecia webhook remove 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        client.remove_endpoint(endpoint)


@webhook.command("rotate")
def rotate(
    endpoint: EndpointId,
    *,
    overlap: Annotated[
        str, Option(metavar="TIME", help="How long notices carry both signatures: 30m, 24h; 0s: not at all.")
    ] = "24h",
    as_json: output.AsJson = False,
) -> None:
    """Give a receiver a new secret, and print it. During the overlap notices carry both signatures.

    Example: `pecia webhook rotate 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11 --overlap 7d`
    """
    with Client() as client:
        _show_secret(client.rotate_endpoint(endpoint, overlap=values.overlap(overlap)), as_json=as_json)


@webhook.command("test")
def try_out(
    endpoint: EndpointId,
    *,
    timeout: Annotated[float, Option(min=0, help="Seconds to wait for the outcome.")] = 30,
    as_json: output.AsJson = False,
) -> None:
    """Send a `webhook.test` now, and show how it went. A paused or disabled receiver that accepts it is enabled again.

    Example: `pecia webhook test 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    deadline = time.monotonic() + timeout
    with Client() as client:
        sent = client.test_endpoint(endpoint)
        while not (sent.attempts or sent.state.is_terminal) and time.monotonic() < deadline:
            time.sleep(_TRY_EVERY_S)
            sent = client.delivery(sent)
    _show_deliveries([sent], as_json=as_json)
    if sent.attempts or sent.state.is_terminal:
        raise typer.Exit(Ending.DONE if sent.state is DeliveryState.DELIVERED else Ending.FAILED)
    endings.complain(
        f"it was not tried within {timeout:g} s: `pecia doctor` shows whether a webhook worker runs."
    )
    raise typer.Exit(Ending.TIMEOUT)


@webhook.command("deliveries")
def deliveries(
    delivery: Annotated[
        UUID | None, Argument(metavar="[DELIVERY]", help="Only this delivery, with every attempt.")
    ] = None,
    *,
    job: OfJob = None,
    endpoint: OfEndpoint = None,
    state: Annotated[DeliveryState | None, Option(help="Only deliveries in this state.")] = None,
    since: Since = None,
    limit: Annotated[int, Option(min=1, help="Most to show.")] = 50,
    as_json: output.AsJson = False,
) -> None:
    """Show deliveries to receivers, past and pending, the latest first, and how they went.

    Example: `pecia webhook deliveries --state dead --since 2d`
    """
    with Client() as client:
        if delivery is not None:
            found = [client.delivery(delivery)]
        else:
            found = client.deliveries(
                job=job, endpoint=endpoint, state=state, since=values.moment(since), limit=limit
            )
    _show_deliveries(found, as_json=as_json)
    if any(one.last_error == NO_SECRET for one in found):
        endings.complain("callbacks wait: no webhook worker of this fleet has PECIA_WEBHOOK_SECRET.")
    if delivery is not None and not as_json:
        tries: list[Sequence[object]] = []
        for one in found[0].attempts:
            reply = output.printable(" ".join((one.reply or "").split()))
            seconds = f"{one.duration.total_seconds():.3f}"
            tries.append((one.number, one.at, seconds, one.status, one.error, reply))
        typer.echo(output.fitting(("try", "at", "seconds", "status", "why", "reply"), tries))


@webhook.command("replay")
def replay(
    delivery: Annotated[
        list[UUID] | None, Argument(metavar="[DELIVERY]...", help="Full ids of deliveries.")
    ] = None,
    *,
    everything: Annotated[
        bool, Option("--all", help="All dead deliveries that `deliveries` shows with the same options.")
    ] = False,
    job: OfJob = None,
    endpoint: OfEndpoint = None,
    since: Since = None,
) -> None:
    """Send deliveries that have ended once more, under the same webhook-id, with a full number of attempts.

    Example: `pecia webhook replay --all --endpoint 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11 --since 2d`
    """
    if bool(delivery) is everything:
        raise BadParameter("name deliveries, or add --all", param_hint="DELIVERY")
    with Client() as client:
        chosen = delivery or [
            dead.id
            for dead in client.deliveries(
                job=job, endpoint=endpoint, state=DeliveryState.DEAD, since=values.moment(since)
            )
        ]
        client.replay(chosen)
    typer.echo(f"{len(chosen)} deliveries are sent again.")


Secret = Annotated[
    str,
    Option(
        envvar="PECIA_WEBHOOK_SECRET",
        help="Secret of an endpoint or a fleet; safer in the environment than on the command line. Default: that of "
        "the fleet that `pecia up` runs on this machine.",
    ),
]
Host = Annotated[str, Option(help="Address to listen on.")]
Port = Annotated[
    int | None,
    Option(
        min=0,
        max=65535,
        help="Port to listen on; 0: any free port. Default: the port that this fleet calls.",
        show_default=False,
    ),
]
Count = Annotated[int | None, Option(min=1, help="Stop after this many callbacks.")]


@webhook.command("listen")
def listen(
    *,
    secret: Secret = "",
    host: Host = "127.0.0.1",
    port: Port = None,
    count: Count = None,
    as_json: output.AsJson = False,
) -> None:
    """Receive callbacks on this machine, verify them and print them, until Ctrl-C.

    The fleet that `pecia up` runs on this machine calls port 8787. A fleet calls other private addresses, and ports
    other than 80 and 443, only if `PECIA_WEBHOOK_ALLOW` and `PECIA_WEBHOOK_PORTS` allow them.

    Example: `pecia webhook listen --count 1`
    """
    fleet, why = None, "The fleet on this machine has no secret."
    try:
        fleet = running.find(from_environment().home)
    except running.NoFleetError as error:
        why = str(error)
    secret = secret or (fleet.webhook_secret if fleet else "")
    if port is None:
        port = (fleet and fleet.webhook_listener) or LISTENER_PORT
    if not secret:
        raise BadParameter(
            f"{why} Give a fleet's secret here or in PECIA_WEBHOOK_SECRET.", param_hint="--secret"
        )
    with suppress(WebhookVerificationError):  # a malformed secret raises another error
        verify(b"", {}, secret)
    try:
        made = Listener(host, port, secret, partial(_show_notice, as_json=as_json))
    except OSError as error:
        endings.complain(f"cannot listen on {host}, port {port}: {error.strerror}: choose another by --port.")
        raise typer.Exit(Ending.UNAVAILABLE) from None
    with made as listener:
        typer.echo(f"Listening on {listener.url}", err=True)
        with suppress(KeyboardInterrupt):
            while count is None or listener.handled < count:
                listener.handle_request()


def _show_notice(delivery: str, notice: JobNotice | None, *, as_json: bool) -> None:
    if notice is None:
        endings.complain(
            f"{delivery or 'a request'} is not signed with this secret, or is too old: answered 401."
        )
    elif as_json:
        output.json_line({"delivery": delivery, **notice.model_dump(mode="json")})
    else:
        data = notice.data
        part = f" {data.part.stage} {data.part.number}" if data.part else ""
        typer.echo(
            f"{output.when(notice.timestamp)} {notice.type}{part} {data.job_id} "
            f"{output.progress_text(data.progress)} sequence {data.sequence}, delivery {delivery}"
        )


def _show_secret(endpoint: Endpoint, *, as_json: bool) -> None:
    if as_json:
        output.json_line(endpoint)
        return
    typer.echo(f"endpoint {endpoint.id}\nsecret   {endpoint.secret}")
    if endpoint.former_until:
        typer.echo(f"Until {output.when(endpoint.former_until)} notices verify with the former secret too.")


def _show_deliveries(found: Sequence[Delivery], *, as_json: bool) -> None:
    if as_json:
        output.json_lines(found)
        return
    headings = ("delivery", "what", "job", "state", "tries", "last", "next")
    rows = [
        (
            *(one.id, one.type, one.job_id, one.state, len(one.attempts)),
            *(one.last_error or one.last_status, one.next_at),
        )
        for one in found
    ]
    typer.echo(output.fitting(headings, rows, spare=("next", "tries", "what", "job")))
