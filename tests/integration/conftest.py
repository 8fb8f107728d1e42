"""A client, and a fleet of one that moves parts through the real ledger when the test says so."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import UUID

import pytest
from PIL import Image, ImageDraw
from redis import Redis
from typer.testing import CliRunner, Result

from pecia import Client, Document, Job, ReadDocument
from pecia.cli.app import app
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.encryption import Keyring
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.messages import job_channel
from pecia_schemas.results import Page, Segment, Summary, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import JobState, Stage
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.protocol.parts import Cut, Done, Failed, Finished, NewPart, Outcome, Spent
from pecia_workers.queue.lists import connect
from tests.shared.chat_server import Behaviour, ChatServerDouble, serving
from tests.shared.forking import LastingTemplate, Programs, Started, forget_templates, fork_from, own_template
from tests.shared.house import House, claimed
from tests.shared.tables import Tables

_HOW: dict[str, Any] = {"verdict": Verdict.OK, "engine": "test"}


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.shared.servers")


@dataclass(frozen=True)
class Scribe:
    """A fleet that waits for orders: each call claims one part, commits what came of it, and announces the job."""

    house: House
    keys: Keyring = field(default_factory=Keyring)

    def cut(self, job_id: UUID, pages: int) -> None:
        """Ingest the job's payload into that many pages."""
        cut = Cut(Stage.READ, [NewPart(ordinal=n, cost=10) for n in range(pages)])
        self._end(job_id, Stage.INGEST, 0, cut)

    def read(self, job_id: UUID, ordinal: int = 0, text: str = "text", **took: Any) -> None:
        """Read one page, for a given engine, usage and timings if they matter."""
        about = {"verdict": Verdict.OK, "width": 10, "height": 10, "engine": "test"}
        page = Page.model_validate({**about, "number": ordinal + 1, "blocks": plain_blocks(text), **took})
        self._end(job_id, Stage.READ, ordinal, Done(page))

    def cut_video(self, job_id: UUID, segments: int) -> None:
        """Ingest the job's video into that many segments, and a summary that waits for them."""
        parts = [NewPart(ordinal=n, cost=10, start_s=n, end_s=n + 1) for n in range(segments)]
        summary = NewPart(ordinal=segments, cost=10)
        self._end(job_id, Stage.INGEST, 0, Cut(Stage.CAPTION, parts, (Stage.SUMMARIZE, summary)))

    def caption(self, job_id: UUID, ordinal: int, text: str = "caption") -> None:
        start, end = timedelta(seconds=ordinal), timedelta(seconds=ordinal + 1)
        segment = Segment(
            number=ordinal + 1, start=start, end=end, text=text, frames=1, width=10, height=10, **_HOW
        )
        self._end(job_id, Stage.CAPTION, ordinal, Done(segment))

    def summarize(self, job_id: UUID, segments: int, text: str = "summary") -> None:
        self._end(job_id, Stage.SUMMARIZE, segments, Done(Summary(text=text, **_HOW)))

    def fail(
        self,
        job_id: UUID,
        ordinal: int = 0,
        code: FailureCode = FailureCode.DAMAGED,
        *,
        stage: Stage = Stage.READ,
        retry_in: timedelta | None = None,
        spent: Spent | None = None,
    ) -> None:
        """Give up on a part, or on this attempt at it."""
        self._end(job_id, stage, ordinal, Failed(Failure.of(code), retry_in, spent))

    def _end(self, job_id: UUID, stage: Stage, ordinal: int, outcome: Outcome) -> None:
        query = "SELECT id FROM parts WHERE job_id = %s AND stage = %s AND ordinal = %s"
        ((part,),) = self.house.query(query, job_id, stage, ordinal)

        async def end(ledger: Ledger) -> None:
            assert await ledger.commit(Finished(part=await claimed(ledger, part), outcome=outcome))

        self.house.play(end, "scribe", announce=self._announce, keys=self.keys)

    async def _announce(self, jobs: Mapping[UUID, JobState]) -> None:
        with Redis.from_url(self.house.redis_url) as redis:
            for job_id, state in jobs.items():
                redis.publish(job_channel(job_id), state)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """The test's Redis as the fleet's lists are used."""
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def house(database_url: str, redis_url: str, payload_url: str, tmp_path: Path) -> House:
    """The test's stores, and the ledgers and the worker of its own process."""
    return House(database_url, redis_url, payload_url, tmp_path)


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    with Client(*house.urls.values()) as client:
        yield client


@pytest.fixture
def tables(database_url: str) -> Tables:
    return Tables(database_url)


@pytest.fixture
def pecia(stores: dict[str, str]) -> Callable[..., Result]:
    """Runs a command line in this process, with what is typed at it and more of an environment."""

    def run(*words: object, typed: str | None = None, **environment: str) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], env=stores | environment, input=typed)

    return run


@pytest.fixture
def scribe(house: House) -> Scribe:
    return Scribe(house)


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Starts workers by forking a process that has imported what they need."""
    template = own_template()
    yield Programs(template)
    template.stop()


@pytest.fixture
def started(programs: Programs, stores: dict[str, str], tmp_path: Path) -> Iterator[Started]:
    """Starts workers on the test's stores, with the quickest engine, which outlive nothing of the test."""
    quick = {"PECIA_ENGINE": "simulated:instant", "PECIA_DECODE_PROCESSES": "1"}
    started = Started(programs, tmp_path, stores | quick)
    yield started
    started.end()


@pytest.fixture(scope="session")
def lasting_template() -> Iterator[LastingTemplate]:
    template = LastingTemplate()
    yield template
    template.end()


@pytest.fixture
def shared_template(
    request: pytest.FixtureRequest, lasting_template: LastingTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have decoders and readers forked from the session's one template, which imports what they need once.

    `forked_for` tells of its processes. A test that takes `own_templates` beside it has templates of its own.
    """
    if "own_templates" not in request.fixturenames:
        forget_templates(but=lasting_template)
        fork_from(lasting_template, monkeypatch)


@pytest.fixture
def own_templates() -> None:
    """Have `templates_of` and `forked_for` tell of the test's own processes alone."""
    forget_templates()


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """Encodes a plain picture; another shade is another document."""

    def encode(
        width: int = 80,
        height: int = 60,
        *,
        shade: int = 255,
        form: str = "PNG",
        orientation: int | None = None,
    ) -> bytes:
        file, exif = io.BytesIO(), Image.Exif()
        if orientation is not None:
            exif[0x0112] = orientation
        Image.new("L", (width, height), shade).save(file, form, exif=exif)
        return file.getvalue()

    return encode


@pytest.fixture(scope="session")
def printed() -> bytes:
    """A page that is not blank, as PNG."""
    image, file = Image.new("L", (800, 600), "white"), io.BytesIO()
    draw = ImageDraw.Draw(image)
    for line in range(20):
        draw.text((40, 30 + 25 * line), "Amoxicillin 500 mg three times a day", fill="black")
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3, with an empty bucket `archive`."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  few tests want it, and it takes a second

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/archive", method="PUT")).close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def s3_options(s3_endpoint: str) -> dict[str, str]:
    """How a fleet reaches that server."""
    keys = {"access_key_id": "key", "secret_access_key": "secret"}
    return {"endpoint": s3_endpoint, "region": "eu-central-1", **keys}


@pytest.fixture(scope="session")
def s3(s3_options: dict[str, str]) -> Any:
    """A client of that server which puts and lists what a test wants."""
    import boto3  # type: ignore[import-untyped]  # noqa: PLC0415  few tests want it

    endpoint, region, key, secret = s3_options.values()
    about = {"endpoint_url": endpoint, "region_name": region, "aws_access_key_id": key}
    return boto3.client("s3", aws_secret_access_key=secret, **about)


@pytest.fixture
def run_page(
    client: Client,
    house: House,
    shared_template: None,  # noqa: ARG001  for what it does
) -> Callable[..., Job[Document]]:
    """Submits a task and runs it on a worker with the given settings; else with the engine that a fleet has."""

    def run(task: ReadDocument, **settings: Any) -> Job[Document]:
        job = client.submit(task)
        house.work_off(job, **{"engine": WorkerSettings().engine, **settings})
        return job

    return run


@pytest.fixture
def server() -> Iterator[ChatServerDouble]:
    """A language model on a server."""
    with serving(Behaviour()) as server:
        yield server


@pytest.fixture
def work(run_page: Callable[..., Job[Document]], server: ChatServerDouble) -> Callable[..., Job[Document]]:
    """Submits a task and runs its page on a worker whose engine asks that server."""
    return partial(run_page, engine="openai", engine_url=server.url, witness="none")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Pecia as it is published."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))
