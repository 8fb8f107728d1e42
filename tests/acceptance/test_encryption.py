"""A fleet with a key: documents are read as ever, and whoever has the disks alone learns nothing; keys come and go."""

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel, Field, SecretStr

from pecia import Client, ClientSettings, Job, ReadDocument
from pecia_schemas.encryption import new_key
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Draw, RunFleet
from tests.shared.limits import WAIT_S, eventually
from tests.shared.tables import texts_of_tables

pytestmark = pytest.mark.gate

PRINTED = "Quillfeather"
EMBEDDED = "Thistlewood"
FILE_NAME = "Hartwigsen"
ASKED = "Saffronwick"
PLANTED = (PRINTED, EMBEDDED, FILE_NAME, ASKED)

OLD, NEW = new_key(), new_key()


class Form(BaseModel):
    """What is asked about each page; the engine of the fleet fills no fields, so that its jobs fail."""

    drug: str | None = Field(None, description=f"what {ASKED} takes")


@dataclass
class SealedFleet:
    """A fleet that encrypts under the old key and knows the new one."""

    running: Any
    spool: Path
    opened: ExitStack

    @property
    def payloads(self) -> Path:
        return Path(self.running.settings.payload_url)

    def client(self, **keys: str) -> Client:
        stores = self.running.settings
        return Client(
            stores.database_url.get_secret_value(),
            stores.redis_url.get_secret_value(),
            stores.payload_url,
            settings=ClientSettings(encryption_keys=SecretStr(json.dumps(keys))),
        )

    def pecia(self, *words: str, **keys: str) -> CompletedProcess[str]:
        """Run a command against this fleet, with these keys."""
        given = {"PECIA_ENCRYPTION_KEYS": json.dumps(keys)} if keys else {}
        return run_pecia(*words, env=self.running.environment | given)

    def dump(self) -> str:
        """Everything that Postgres holds, as it would be backed up."""
        return str(texts_of_tables(self.running.settings.database_url.get_secret_value()))


@pytest.fixture(scope="module")
def sealed(run_fleet: RunFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedFleet]:
    spool = tmp_path_factory.mktemp("spool")
    keys = SecretStr(json.dumps({"old": OLD, "new": NEW}))
    settings = {"encryption_keys": keys, "spool_dir": str(spool), "log_level": "debug"}
    with run_fleet("sealed", **settings) as running, ExitStack() as opened:
        yield SealedFleet(running, spool, opened)


@pytest.fixture(scope="module")
def jobs(sealed: SealedFleet, tmp_path_factory: pytest.TempPathFactory, drawn: Draw) -> list[Job[Any]]:
    """A picture and a document of two pages that were read, and one whose fields nobody could fill."""
    picture, document = (tmp_path_factory.mktemp("ward") / f"{FILE_NAME}{kind}" for kind in (".png", ".pdf"))
    page = Image.open(io.BytesIO(drawn(f"Seen: {PRINTED}"))).convert("RGB")
    page.save(picture)
    page.save(document, save_all=True, append_images=[page], title=EMBEDDED)
    client = sealed.opened.enter_context(sealed.client(old=OLD))
    tasks = [ReadDocument(picture), ReadDocument(document), ReadDocument(picture, fields=Form)]
    group = client.submit_many(tasks).wait(WAIT_S)
    assert [job.state for job in group] == ["succeeded", "succeeded", "failed"]
    return list(group)


def test_documents_are_read_as_ever_and_neither_dump_store_nor_log_tells_of_them(
    sealed: SealedFleet, jobs: list[Job[Any]]
) -> None:
    assert [PRINTED in page.text for job in jobs[:2] for page in job.result(timeout=0).pages] == [True] * 3
    assert jobs[2].failure is not None
    assert jobs[2].failure.code == "fields_unavailable"
    dump, files = sealed.dump(), [path for path in sealed.payloads.rglob("*") if path.is_file()]
    assert str(jobs[0].id) in dump
    assert [word for word in PLANTED if word in dump] == []
    assert len(files) == 2
    for content in (path.read_bytes() for path in files):
        assert content.startswith(b"PECIA\x01\x03old")
        assert not any(word.encode() in content for word in PLANTED)

    def logs() -> str:
        return "\n".join(log.read_text() for log in (sealed.running.fleet.home.path / "logs").iterdir())

    eventually(lambda: "fields_unavailable" in logs(), what="a line about the failure")
    assert not any(secret in logs() for secret in (OLD, NEW, *PLANTED))


def test_the_command_reads_with_the_key_alone_and_tells_what_is_under_which(
    sealed: SealedFleet, jobs: list[Job[Any]]
) -> None:
    with_key = sealed.pecia("result", str(jobs[0].id), "--json", old=OLD)
    without = sealed.pecia("result", str(jobs[0].id), "--json")
    assert PRINTED in with_key.stdout, with_key.stderr
    assert (without.returncode, without.stdout, without.stderr.count("\n")) == (2, "", 1)
    assert "'old', which PECIA_ENCRYPTION_KEYS lacks here" in without.stderr
    told = sealed.pecia("keys", "status", "--json", new=NEW, old=OLD)
    unknown = sealed.pecia("keys", "status", new=NEW)
    assert (told.returncode, told.stderr) == (0, "")
    stored = {"key": "old", "jobs": 3, "secrets": 0, "available": True}
    assert json.loads(told.stdout) == {"current": "new", "stored": [stored]}
    assert (unknown.returncode, "not here" in unknown.stdout) == (1, True)
    examined = sealed.pecia("doctor", "--json", new=NEW, old=OLD)
    assert json.loads(examined.stdout.splitlines()[0])["detail"].endswith("encrypted under the key new")


def test_no_decrypted_copy_is_kept(sealed: SealedFleet, jobs: list[Job[Any]]) -> None:
    def files() -> set[str]:
        return {path.name for path in sealed.spool.rglob("*") if path.is_file()}

    assert jobs
    eventually(lambda: files() == {"lock"}, what="the end of the copies")


def test_a_rotation_makes_the_former_key_needless_while_the_fleet_works(
    sealed: SealedFleet, jobs: list[Job[Any]], drawn: Draw
) -> None:
    def rotate() -> dict[str, int]:
        return dict(json.loads(sealed.pecia("keys", "rotate", "--json", new=NEW, old=OLD).stdout))

    with sealed.client(old=OLD, new=NEW) as client:
        meanwhile = client.submit_many(ReadDocument(drawn(f"Seen {number}")) for number in range(6))
        while_working = rotate()
        texts = [document.text for document in meanwhile.results(WAIT_S)]
    afterwards = rotate()

    assert texts == [f"Seen {number}" for number in range(6)]
    assert while_working["jobs"] + afterwards["jobs"] == 3 + 6
    assert (while_working["refused"], afterwards["refused"]) == (0, 0)
    status = sealed.pecia("keys", "status", "--json", new=NEW)
    assert [stored["key"] for stored in json.loads(status.stdout)["stored"]] == ["new"]
    with sealed.client(new=NEW) as client:
        assert PRINTED in client.job(jobs[0].id).result(timeout=0).text
    assert not any(word in sealed.dump() for word in PLANTED)


def test_a_new_key_is_what_the_setting_takes() -> None:
    made = ClientSettings(encryption_keys=SecretStr(run_pecia("keys", "new", "2027").stdout))
    assert made.keyring.current == "2027"


@pytest.mark.parametrize(
    ("words", "keys", "why"),
    [
        (("new", "two words"), {}, "1 to 64 letters"),
        (("new", "old"), {"old": OLD}, "There is a key 'old' already"),
        (("rotate",), {}, "There is no key to encrypt with: set PECIA_ENCRYPTION_KEYS"),
        (("status",), {"old": "no key"}, "PECIA_ENCRYPTION_KEYS contains an invalid key"),
        (("status",), {"old": OLD}, "Set PECIA_DATABASE_URL"),
    ],
)
def test_what_cannot_be_meant_is_one_line(words: tuple[str, ...], keys: dict[str, str], why: str) -> None:
    told = run_pecia("keys", *words, env={"PECIA_ENCRYPTION_KEYS": json.dumps(keys)} if keys else {})
    assert (told.returncode, told.stdout) == (2, "")
    assert why in told.stderr
    assert told.stderr.count("\n") == 1
