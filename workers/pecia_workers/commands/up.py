"""`pecia up`: a fleet on this machine."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pecia_schemas.connecting import verdict_on
from pecia_workers.commands.common import UNAVAILABLE, USAGE, refused, settings_or_exit
from pecia_workers.commands.worker import admitted_or_exit
from pecia_workers.ledger.database import open_for_questions
from pecia_workers.ledger.standing import GLANCE_S, MOST_JOBS, glance
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.home import default_home, environment
from pecia_workers.local.process import EmbeddedError, ServiceState
from pecia_workers.media.samples import write_exhibits


def sample(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where they are written; made if missing.", file_okay=False)
    ],
) -> None:
    """Write sample medical documents: a PDF of some pages, pictures, a damaged file.

    Existing files are kept. Prints the paths.

    Example: `pecia sample papers`
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        exhibits = write_exhibits(directory)
    except OSError as error:
        raise refused(f"{directory} cannot be written: {error.strerror}", USAGE) from None
    for exhibit in exhibits:
        typer.echo(exhibit.path)


_STATUS_EVERY_S = 1.0
_STATUS_WITHOUT_TERMINAL_S = 10.0
_STARTING_S = 120
_LOADING_S = 3600  # tens of gigabytes may have to come through the network first


def up(
    home: Annotated[
        Path | None, typer.Option(help="Where documents, databases and logs are kept; made if missing.")
    ] = None,
    *,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Serve HTTP too, as `pecia gateway` does.")
    ] = False,
) -> None:
    """Run a fleet on this machine until Ctrl-C: Postgres, Redis, workers and Flower.

    Stores named by PECIA_DATABASE_URL, PECIA_REDIS_URL or PECIA_PAYLOAD_URL are used instead of embedded ones.

    Example: `pecia up --home ./fleet`
    """
    settings = settings_or_exit()
    admitted_or_exit(settings)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    console = Console(highlight=False)
    place = home or Path(settings.home or default_home())
    try:
        console.print(f"A fleet in {place}")
        with LocalFleet(place, settings=settings, gateway=gateway, report=console.print) as fleet:
            loads = settings.engine in ("vllm", "ray")
            if loads:
                console.print("A model takes minutes to load, and to download first.")
            fleet.wait_ready(_LOADING_S if loads else _STARTING_S, unless=stopping.is_set)
            if not stopping.is_set():
                console.print(_screen(fleet))
                if console.is_terminal and (link := web_link(fleet)):
                    console.print(
                        Text(f"Web page, signed in for a day: {link}", style=f"link {link}"), soft_wrap=True
                    )
            _watch(fleet, stopping, console)
            console.print("Stopping: workers finish what they have begun …")
    except EmbeddedError as error:
        raise refused(error, UNAVAILABLE) from None


def _screen(fleet: LocalFleet) -> Table:
    services = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("service", "state", "process", "where"):
        services.add_column(title, overflow="fold")
    for service in fleet.services():
        good = service.state in (ServiceState.READY, ServiceState.EXTERNAL)
        state = f"[{'green' if good else 'yellow'}]{service.state}[/]"
        services.add_row(service.name, state, str(service.pid or ""), service.where)
    screen = Table.grid(padding=(0, 1))
    screen.add_row(services)
    screen.add_row("")
    if flower := fleet.flower:
        screen.add_row(Text(f"Flower   {flower.url}  {flower.login}"))
    if fleet.gateway:
        screen.add_row(f"Web page {fleet.gateway}/  make a key: pecia access create NAME --tenant NAME")
    if port := fleet.settings.webhook_listener:
        screen.add_row(f"Callbacks reach http://127.0.0.1:{port}/ too: pecia webhook listen")
    for line in (
        f"Ctrl-C stops it. Data and logs are in {fleet.home.path}",
        "",
        "In another terminal:",
        "  pecia sample papers             draw documents to try it with",
        "  pecia read papers/ --wait       read them",
        "  pecia watch                     see jobs move",
        "  pecia doctor                    check that all is well",
    ):
        screen.add_row(line)
    return screen


def web_link(fleet: LocalFleet) -> str | None:
    """Return the page's address with a new key, valid for a day, after its `#`, which browsers do not send.

    For a terminal only, since others may read logs. None without a gateway.
    """
    if fleet.gateway is None:
        return None
    scopes = [word for scope in ("submit", "read", "review", "admin") for word in ("--scope", scope)]
    create = (sys.executable, "-m", "pecia", "access", "create", "browser", "--tenant", "local", *scopes)
    made = subprocess.run(
        (*create, "--expires", "1d", "--json"),
        env=environment(fleet.settings),
        capture_output=True,
        text=True,
        check=False,
    )
    return None if made.returncode else f"{fleet.gateway}/#{json.loads(made.stdout)['key']}"


def _watch(fleet: LocalFleet, stopping: threading.Event, console: Console) -> None:
    """Show the state of jobs until the fleet stops: on one line of a terminal, or a line for each change."""
    engine = open_for_questions(fleet.settings.database_url.get_secret_value())
    shown = ""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while not stopping.wait(_STATUS_EVERY_S if live else _STATUS_WITHOUT_TERMINAL_S):
            try:
                with engine.connect() as connection:
                    now = glance(connection)
            except Exception as error:
                if verdict_on(error) is None:
                    raise
                figures = "Postgres does not answer"
            else:
                jobs = f"{_counted(now.queued)} queued, {_counted(now.running)} running"
                ended = f"{now.done:,} done, {now.failed:,} failed, {now.parts / GLANCE_S:.1f} pages/s"
                figures = f"{jobs}; in the last minute {ended}"
            if live:
                live.update(figures, refresh=True)
            elif figures != shown:
                console.print(figures)
            shown = figures


def _counted(jobs: int) -> str:
    return f"{jobs:,} or more" if jobs == MOST_JOBS else f"{jobs:,}"
