"""A whole fleet on real servers, as `pecia up` runs it, and a client of it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Browser
from pydantic import SecretStr

from pecia import Client
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet
from tests.shared.browsers import chromium
from tests.shared.fixture_types import RunFleet
from tests.shared.pictures import encoded
from tests.shared.receivers import Receiver, receiving

WEBHOOK_SECRET = "whsec_" + "dGhlIHNlY3JldCBvZiB0aGUgdGVzdHMsIDI0Kw=="


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.shared.servers")


@dataclass
class RunningFleet:
    """A fleet under test, and how to look into it."""

    fleet: LocalFleet
    client: Client

    @property
    def settings(self) -> WorkerSettings:
        return self.fleet.settings

    @property
    def webhook_secret(self) -> str:
        return self.settings.webhook_secret.get_secret_value()

    def pid(self, service: str) -> int:
        found = next(one for one in self.fleet.services() if one.name == service)
        assert found.pid is not None, f"{service} is {found.state}"
        return found.pid

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.settings.database_url.get_secret_value()) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    @property
    def environment(self) -> dict[str, str]:
        """What points a command to this fleet."""
        return {
            "PECIA_DATABASE_URL": self.settings.database_url.get_secret_value(),
            "PECIA_REDIS_URL": self.settings.redis_url.get_secret_value(),
            "PECIA_PAYLOAD_URL": self.settings.payload_url,
        }


@pytest.fixture(scope="session")
def run_fleet(
    session_directory: Path, ready_cluster: Callable[[Path], None]
) -> Callable[..., AbstractContextManager[RunningFleet]]:
    """Runs a whole fleet for the length of a block. Its tables are there: `pecia up` and `pecia demo` migrate."""

    @contextmanager
    def run(name: str, *, gateway: bool = False, **settings: Any) -> Iterator[RunningFleet]:
        home = session_directory / name
        home.mkdir(mode=0o711)
        given = {
            "webhook_secret": SecretStr(WEBHOOK_SECRET),
            "webhook_allow": ("127.0.0.0/8",),
            "webhook_ports": (),
            "flower_port": 0,
            "cache": False,  # a page that comes twice is work twice
            "witness": "none",  # which reads every page once more
        }
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            if "database_url" not in settings:
                ready_cluster(home / "postgres")
            fleet = LocalFleet(
                home,
                settings=WorkerSettings(**{**given, **settings}),
                migrate=("/bin/true",),
                announce=False,
                gateway=gateway,
            )
            stack.enter_context(fleet)
            fleet.wait_ready()
            urls = fleet.settings
            client = Client(
                urls.database_url.get_secret_value(), urls.redis_url.get_secret_value(), urls.payload_url
            )
            yield RunningFleet(fleet, stack.enter_context(client))

    return run


@pytest.fixture(scope="session")
def fleet(run_fleet: RunFleet) -> Iterator[RunningFleet]:
    """A fleet with the CPU engine, as a user has it; all tests share it."""
    with run_fleet("ocr") as fleet:
        yield fleet


def draw(text: str, size: tuple[int, int] = (600, 120)) -> bytes:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((30, 40), text, fill="black", font=ImageFont.load_default(28))
    return encoded(image, "PNG")


@pytest.fixture(scope="session")
def drawn() -> Callable[..., bytes]:
    """Draws a small page with one line of print, as PNG."""
    return draw


@pytest.fixture(scope="module")
def open_receiver() -> Iterator[Callable[[], Receiver]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(receiving())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
