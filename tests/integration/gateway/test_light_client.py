"""The light client: Pecia without extras, at a gateway."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from packaging.requirements import Requirement
from pydantic import SecretStr

from pecia import ReadDocument
from pecia.remote import connections
from pecia.remote.connections import RemoteConnections
from pecia_schemas.settings import ClientSettings
from tests.shared.command import ran
from tests.shared.gateways import Gateway
from tests.shared.pictures import encoded, note
from tests.shared.real_fleet import RealFleet
from tests.shared.snippets import blocks

ROOT = Path(__file__).parents[3]
OURS = {"pecia": ROOT / "producer" / "pecia", "pecia_schemas": ROOT / "schemas" / "pecia_schemas"}
MOST = 18

SUBMIT = """
import sys
from pathlib import Path
from pecia import Client, ReadDocument
with Client(sys.argv[1], api_key=sys.argv[2]) as client:
    fields = {"type": "object", "properties": {"drug": {"type": "string"}}}
    task = ReadDocument(Path(sys.argv[3]), fields=fields)
    print(*(job.id for job in client.submit_many([task, task], batch="ward")))
"""
READ = """
import asyncio, sys
from uuid import UUID
from pecia import AsyncClient, Client
async def read(job_id):
    async with AsyncClient(sys.argv[1], api_key=sys.argv[2]) as client:
        job = await client.job(job_id)
        print([page.text async for page in job.pages()], (await job.result()).text)
with Client(sys.argv[1], api_key=sys.argv[2]) as client:
    jobs = list(client.jobs(batch="ward"))
    print([job.state.value for job in jobs], client.job(sys.argv[3]).result().text)
asyncio.run(read(UUID(sys.argv[3])))
"""
STORES = """
from pecia import Client, ConfigurationError
try:
    Client("postgresql://host/db", "redis://host", "/documents")
except ConfigurationError as error:
    print(error)
"""


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return a distribution and all that it needs without extras."""
    if name not in found:
        found[name] = distribution(name)
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(re.sub(r"[-_.]+", "-", requirement.name).lower(), found)
    return found


@pytest.fixture(scope="module")
def packages() -> dict[str, Distribution]:
    return needed("pecia", {})


@pytest.fixture(scope="module")
def site(packages: dict[str, Distribution], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that has these alone."""
    site = tmp_path_factory.mktemp("site")
    for name, package in OURS.items():
        (site / name).symlink_to(package)
    for one in packages.values():
        for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if "pecia" not in top:
                (site / top).symlink_to(str(one.locate_file(top)))
    return site


def python(site: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return ran(sys.executable, "-S", *map(str, arguments), env={"PYTHONPATH": str(site)}, cwd=site)


def test_it_installs_few_packages_and_none_of_a_fleet(packages: dict[str, Distribution]) -> None:
    assert {"pecia", "pydantic", "httpx2"} <= packages.keys()
    assert not {"celery", "greenlet", "psycopg", "redis", "rich", "sqlalchemy", "typer"} & packages.keys()
    assert len(packages) <= MOST


def test_it_submits_and_reads_through_the_gateway(
    fleet: RealFleet, gateway: Gateway, site: Path, tmp_path: Path
) -> None:
    fleet.answers(ReadDocument, text="Amoxicillin", fields={"drug": "Amoxicillin"})
    (scan := tmp_path / "scan.png").write_bytes(encoded(note(), "PNG"))
    _, key = gateway.key()
    submitted = python(site, "-c", SUBMIT, gateway.url, key, scan)
    assert submitted.returncode == 0, submitted.stderr
    first, _ = submitted.stdout.split()
    fleet.finish()
    read = python(site, "-c", READ, gateway.url, key, first)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == [
        "['succeeded', 'succeeded'] Amoxicillin",
        "['Amoxicillin'] Amoxicillin",
    ]


def test_it_is_enough_for_tests_against_a_fake_fleet(site: Path) -> None:
    first, *_ = blocks((ROOT / "docs" / "testing.md").read_text(), "python")
    tested = python(site, "-c", first)
    assert tested.returncode == 0, tested.stderr


def test_it_names_the_extra_for_what_it_has_not(site: Path) -> None:
    command = python(site, "-m", "pecia", "list")
    assert (command.returncode, command.stdout) == (2, "")
    assert command.stderr.startswith("The command needs an extra of the client: ")
    assert command.stderr.endswith(" install './pecia[cli]'\n")
    assert " install './pecia[stores]', or name a gateway" in python(site, "-c", STORES).stdout


@dataclass
class Scripted(httpx2.BaseTransport):
    """What takes the place of a gateway: answers, and what was sent."""

    answer: Callable[[int], httpx2.Response]
    sent: list[httpx2.URL] = field(default_factory=list)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request.url)
        return self.answer(len(self.sent))

    def gateway(self) -> RemoteConnections:
        settings = ClientSettings(gateway_url="https://gateway.example", api_key=SecretStr("key"))
        gateway = RemoteConnections(settings)
        gateway._gateway._http = httpx2.Client(transport=self, base_url="https://gateway.example/v1")
        return gateway


def test_a_call_that_must_not_run_twice_waits_for_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(connections, "sleep", slept.append)
    limited = {"code": "rate", "detail": "This key makes too many requests a second."}
    headers = {"content-type": "application/problem+json", "retry-after": "3"}
    scripted = Scripted(
        lambda number: (
            httpx2.Response(429, json=limited, headers=headers)
            if number == 2
            else httpx2.Response(200, json={"cancelled": True})
        )
    )
    jobs = [uuid4() for _ in range(3)]
    assert scripted.gateway().transitions.cancel(jobs, None) == jobs
    assert slept == [3]


def test_what_is_looked_up_fits_into_an_address_that_proxies_take() -> None:
    scripted = Scripted(lambda _: httpx2.Response(200, json={"jobs": []}))
    scripted.gateway().store.views([uuid4() for _ in range(500)])
    assert sum(str(url).count("id=") for url in scripted.sent) == 500
    assert max(len(url.raw_path) for url in scripted.sent) < 8_000
