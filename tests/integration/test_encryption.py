"""With keys nothing stored tells of a document; keys change while the fleet works; an erased job is shredded."""

import asyncio
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import CaptionVideo, Client, ClientSettings, FailureCode, Job, ReadDocument, errors
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.connecting import parameters_of
from pecia_schemas.encryption import (
    Keyring,
    KeyUnavailableError,
    new_key,
    seal,
    seal_label,
    seal_task,
    unseal_task,
)
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadCorruptError, PayloadStore, key_of
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.rekeying import DATA_KEYS, Holdings, Rewrapped, holdings, rewrap, spans
from pecia_workers.ledger.retention import PAYLOADS, RESULTS, forget
from pecia_workers.local.servers import postgres_programs
from pecia_workers.protocol.parts import ClaimedPart, Done, Finished
from pecia_workers.worker.stages import failure_of
from tests.shared.house import House, claimed
from tests.shared.samples import page
from tests.shared.snippets import ROOT
from tests.shared.tables import texts_of_tables

pytestmark = pytest.mark.gate

R = TypeVar("R")

PLANTED = "Quillfeather"
OLD = {"old": new_key()}
NEW = {"new": new_key()}
DOCUMENT = b"%PDF-1.7\n" + PLANTED.encode() * 10
VIDEO = b"\x00\x00\x00\x18ftypmp42" + PLANTED.encode() * 10


class Asked(BaseModel):
    """A form whose very schema tells of the patient."""

    answer: str | None = Field(None, description=f"what {PLANTED} takes")


@dataclass
class Ward(House):
    """Stores as clients and workers with different keys see them."""

    a_scribe: Any = None
    open: ExitStack = field(default_factory=ExitStack)

    def client(self, keys: dict[str, str]) -> Client:
        settings = ClientSettings(encryption_keys=SecretStr(json.dumps(keys) if keys else ""))
        return self.open.enter_context(Client(**self.urls, settings=settings))

    def scribe(self, keys: dict[str, str]) -> Any:
        return replace(self.a_scribe, keys=ring(keys))

    def read(
        self, text: str = PLANTED, *, keys: dict[str, str], label: str | None = None, **task: Any
    ) -> Job[Any]:
        """Have a document of one page read, under these keys."""
        job = self.client(keys).submit(ReadDocument(DOCUMENT, **task), label=label)
        scribe = self.scribe(keys)
        scribe.cut(job.id, 1)
        scribe.read(job.id, 0, text)
        return job.refresh()

    def read_before(self, keys: dict[str, str], **task: Any) -> Job[Any]:
        """Have a document read by a version that had no data keys: under the keys of the fleet, or under none."""
        job = self.read(keys={}, label=PLANTED, **task)
        if not keys:
            return job
        former, key = ring(keys), next(iter(keys))
        ((name, task_before, part, content),) = self.query(
            """SELECT payload, task, part_id, content::text FROM jobs JOIN results ON job_id = jobs.id
               WHERE jobs.id = %s""",
            job.id,
        )
        renamed = former.name_of(name, key)
        path = Path(self.payload_url, key_of(renamed))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(seal(BytesIO(DOCUMENT), renamed, former, key)))
        Path(self.payload_url, key_of(name)).unlink(missing_ok=True)
        source = task_before["source"] | {"sha256": renamed, "key": key}
        sealed = json.dumps(seal_task(task_before, job.id, former) | {"source": source})
        label = json.dumps(seal_label(PLANTED, job.id, former))
        self.query(
            "UPDATE jobs SET task = %s, label = %s, payload = %s WHERE id = %s",
            sealed,
            label,
            renamed,
            job.id,
        )
        self.query("UPDATE results SET content = %s WHERE part_id = %s", former.seal(content, part), part)
        return job

    def rotate(self, keys: dict[str, str]) -> Rewrapped:
        return self.ask(lambda database: rewrap(database, ring(keys), lambda _: None))

    def holdings(self) -> dict[str | None, int]:
        """Jobs by the key that wraps their data key."""
        held: list[Holdings] = self.ask(holdings)
        return {one.key: one.jobs for one in held}

    def document_of(self, part: ClaimedPart, keys: dict[str, str]) -> bytes:
        copy = self.spool / "copy"
        PayloadStore.open(self.payload_url, keys=ring(keys)).fetch(part.payload, copy)
        return copy.read_bytes()

    def claim(self, job: Job[Any], keys: dict[str, str]) -> ClaimedPart:
        """Claim the first part of a job as a worker with these keys does."""
        (part,) = self.waiting(job)
        return self.play(lambda ledger: claimed(ledger, part), keys=ring(keys))

    def tables(self) -> str:
        """Every row of every table."""
        return str(texts_of_tables(self.database_url))


def ring(keys: dict[str, str]) -> Keyring:
    return Keyring.of(SecretStr(json.dumps(keys) if keys else ""))


@pytest.fixture
def ward(house: House, scribe: Any) -> Iterator[Ward]:
    stores = house.database_url, house.redis_url, house.payload_url, house.spool
    ward = Ward(*stores, a_scribe=scribe)
    with ward.open:
        yield ward


def test_a_part_without_its_key_is_tried_again_and_says_which_it_needs() -> None:
    failure = failure_of(KeyUnavailableError("old"), attempt=2)
    assert (failure.code, failure.retryable, failure.attempt) == (FailureCode.KEY_UNAVAILABLE, True, 2)
    assert failure.message.startswith("Needs the key 'old'.")


@pytest.mark.parametrize("keys", [NEW, {}], ids=["with keys", "without"])
def test_with_keys_no_table_and_no_store_tell_of_a_document(ward: Ward, keys: dict[str, str]) -> None:
    job = ward.read(keys=keys, fields=Asked, instructions=PLANTED, password=PLANTED)
    assert [page.text for page in job.pages(timeout=0)] == [PLANTED]
    told = ward.tables(), *map(str, ward.files().values())
    assert any(PLANTED in place for place in told) is not bool(keys)
    assert ward.client(NEW).job(job.id).result(timeout=0).text == PLANTED


def test_captions_reach_their_summary_and_the_client(ward: Ward) -> None:
    job = ward.client(NEW).submit(CaptionVideo(VIDEO))
    scribe = ward.scribe(NEW)
    scribe.cut_video(job.id, 2)
    for ordinal in range(2):
        scribe.caption(job.id, ordinal, f"{PLANTED} {ordinal}")

    captions = ward.play(lambda ledger: ledger.captions(job.id), keys=ring(NEW))
    assert [segment.text for segment in captions] == [f"{PLANTED} 0", f"{PLANTED} 1"]
    scribe.summarize(job.id, 2, f"all of {PLANTED}")
    summary = job.result(timeout=0).summary
    assert summary is not None
    assert summary.text == f"all of {PLANTED}"
    assert PLANTED not in ward.tables()


@pytest.mark.parametrize("keys", [{}, OLD, {"new": new_key()}], ids=["none", "another", "of the same name"])
def test_a_client_without_the_key_is_told_which_setting(ward: Ward, keys: dict[str, str]) -> None:
    job = ward.read(keys=NEW)
    with pytest.raises(errors.ConfigurationError, match=r"'new'.*PECIA_ENCRYPTION_KEYS") as caught:
        ward.client(keys).job(job.id).result(timeout=0)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_spans_cover_every_row_once(ward: Ward, size: int) -> None:
    jobs = sorted(ward.client(NEW).submit(ReadDocument(DOCUMENT)).id for _ in range(3))

    async def all_spans(database: AsyncEngine) -> list[tuple[UUID, UUID]]:
        return [(span["after"], span["last"]) async for span in spans(database, DATA_KEYS, size=size)]

    found = ward.ask(all_spans)
    assert [last for _, last in found] == [jobs[end - 1] for end in range(size, 3, size)] + [jobs[-1]]
    assert [after for after, _ in found[1:]] == [last for _, last in found[:-1]]


@pytest.mark.parametrize("former", [{}, OLD], ids=["none", "another"])
def test_a_repeated_key_finds_its_job_under_any_encryption_key(ward: Ward, former: dict[str, str]) -> None:
    task = ReadDocument(DOCUMENT, fields=Asked)
    first = ward.client(former).submit(task, idempotency_key="k")
    with pytest.raises(errors.IdempotencyConflictError):
        ward.client(NEW | former).submit(ReadDocument(VIDEO), idempotency_key="k")
    again = ward.client(NEW | former).submit(task, idempotency_key="k")
    ward.rotate(NEW | former)
    rotated = ward.client(NEW).submit(task, idempotency_key="k")
    assert [(one.id, one.created) for one in (again, rotated)] == [(first.id, False)] * 2


def test_equal_tasks_of_two_jobs_have_nothing_in_common_but_the_stored_document(ward: Ward) -> None:
    for _ in range(2):
        ward.client(NEW).submit(ReadDocument(DOCUMENT, fields=Asked))
    one, other = ward.rows("SELECT payload, task_digest, task->'source'->'secret' AS secret FROM jobs")
    assert one["payload"] == other["payload"]
    assert len(ward.files()) == 1
    assert (one["task_digest"], one["secret"]) != (other["task_digest"], other["secret"])


@pytest.mark.parametrize("before", [False, True], ids=["of this version", "of one without data keys"])
def test_after_a_rotation_the_former_key_is_not_needed(ward: Ward, *, before: bool) -> None:
    given: dict[str, Any] = {"fields": Asked, "password": PLANTED}
    job = ward.read_before(OLD, **given) if before else ward.read(keys=OLD, label=PLANTED, **given)
    scanned, files = ward.query("SELECT content::text FROM results"), ward.files()
    assert ward.client({}).job(job.id).label is None
    assert ward.client(OLD).job(job.id).result(timeout=0).text == PLANTED
    assert ward.holdings() == {None if before else "old": 1}

    assert ward.rotate(NEW | OLD) == Rewrapped(jobs=1)

    assert ward.holdings() == {"new": 1}
    assert ward.rotate(NEW | OLD) == Rewrapped()
    rotated = ward.client(NEW).job(job.id)
    assert (rotated.label, rotated.result(timeout=0).text) == (PLANTED, PLANTED)
    assert (ward.query("SELECT content::text FROM results"), ward.files()) == (scanned, files)
    assert PLANTED not in ward.tables()


@pytest.mark.parametrize("former", [{}, OLD], ids=["not encrypted", "under the former key"])
def test_a_job_from_before_runs_again_after_a_rotation_and_is_encrypted_from_there(
    ward: Ward, former: dict[str, str]
) -> None:
    job = ward.read_before(former, fields=Asked, password=PLANTED)
    ward.query("UPDATE parts SET state = 'failed' WHERE stage = 'read'")
    ward.query("UPDATE jobs SET state = 'failed', failed = 1, done = 0")
    assert ward.rotate(NEW | former) == Rewrapped(jobs=1)

    ward.client(NEW).job(job.id).retry()
    part = ward.claim(job, NEW)

    assert isinstance(part.task, ReadDocument)
    assert isinstance(part.task.password, SecretStr)
    assert (part.task.fields, part.task.password.get_secret_value()) == (Asked.model_json_schema(), PLANTED)
    assert ward.document_of(part, NEW) == DOCUMENT
    assert PLANTED not in repr(part)


def test_a_rotation_between_claim_and_commit_loses_nothing(ward: Ward) -> None:
    job = ward.client(OLD).submit(ReadDocument(DOCUMENT, fields=Asked))
    ward.scribe(OLD).cut(job.id, 1)
    (part,) = ward.waiting(job)

    async def story(ledger: Ledger) -> None:
        claim = await claimed(ledger, part)
        await rewrap(ledger._database, ring(NEW | OLD), lambda _: None)
        assert await ledger.commit(Finished(part=claim, outcome=Done(page(blocks=plain_blocks(PLANTED)))))

    ward.play(story, keys=ring(OLD))
    assert ward.client(NEW).job(job.id).result(timeout=0).text == PLANTED
    assert PLANTED not in ward.tables()


def test_two_rotations_at_once_do_everything_once_between_them(ward: Ward) -> None:
    jobs = [ward.read(text, keys=OLD) for text in ("one", "two")] + [ward.read_before(OLD)]

    async def twice(database: AsyncEngine) -> Sequence[Rewrapped]:
        return await asyncio.gather(*(rewrap(database, ring(NEW | OLD), lambda _: None) for _ in range(2)))

    ward.ask(twice)

    assert ward.holdings() == {"new": 3}
    read = [ward.client(NEW).job(job.id).result(timeout=0).text for job in jobs]
    assert read == ["one", "two", PLANTED]


def test_what_cannot_be_decrypted_is_left_and_stops_nothing(ward: Ward) -> None:
    ward.read("lost", keys={"lost": new_key()})
    kept = ward.read("kept", keys=OLD)
    assert ward.rotate(NEW | OLD) == Rewrapped(jobs=1, refused=1)
    assert ward.holdings() == {"lost": 1, "new": 1}
    assert ward.client(NEW).job(kept.id).result(timeout=0).text == "kept"


def erase(ward: Ward, job: Job[Any]) -> None:
    with ward.client(NEW) as client:
        assert [one.document for one in client.purge([job])] == ["erased"]


def expire(ward: Ward, _: Job[Any]) -> None:
    for kind in (RESULTS, PAYLOADS):
        assert ward.holdings() == {"new": 1}
        ward.ask(partial(forget, kinds=[kind], age=timedelta(), limit=9))


@pytest.mark.parametrize("end", [erase, expire])
def test_a_copy_of_an_erased_jobs_rows_and_document_is_unreadable(ward: Ward, end: Any) -> None:
    job = ward.read(keys=NEW, fields=Asked)
    ward.query("CREATE TABLE jobs_copy AS SELECT * FROM jobs")
    ward.query("CREATE TABLE results_copy AS SELECT * FROM results")
    (((name, sealed)),) = ward.files().items()

    end(ward, job)

    assert ward.query("SELECT * FROM job_keys") == []
    path = Path(ward.payload_url, key_of(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed)
    ward.query("""UPDATE jobs SET task = copy.task, payload = copy.payload, erased_at = NULL, payload_released_at = NULL
                  FROM jobs_copy AS copy WHERE copy.id = jobs.id""")
    ward.query("INSERT INTO results SELECT * FROM results_copy")
    ward.query("DROP TABLE jobs_copy, results_copy")
    with pytest.raises(errors.ConfigurationError, match="The data key of the job was erased"):
        ward.client(NEW).job(job.id).result(timeout=0)
    ((task,),) = ward.query("SELECT task FROM jobs")
    with pytest.raises(KeyUnavailableError):
        unseal_task(task, job.id, ring(NEW))
    known = PayloadRef.model_validate({**task["source"], "secret": None})
    with pytest.raises(PayloadCorruptError):
        PayloadStore.open(ward.payload_url, keys=ring(NEW)).fetch(known, ward.spool / "copy")


def test_a_document_that_another_job_holds_stays_readable_to_that_job(ward: Ward) -> None:
    erased, kept = (ward.client(NEW).submit(ReadDocument(DOCUMENT)) for _ in range(2))
    ward.client(NEW).purge([erased])
    assert ward.document_of(ward.claim(kept, NEW), NEW) == DOCUMENT


def test_what_the_page_restores_is_readable_but_for_erased_jobs(
    ward: Ward, empty_database_url: str, tmp_path: Path
) -> None:
    place = parameters_of(ward.database_url)
    path = f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}"
    server = {"PGHOST": place["host"], "PGPORT": place["port"], "PGUSER": place["user"], "PATH": path}

    def shell(line: str) -> None:
        subprocess.run(shlex.split(line), cwd=tmp_path, env=os.environ | server, check=True)

    recipe = " ".join((ROOT / "docs/encryption.md").read_text().split())
    everything, data_keys = re.findall(r"pg_dump .*? pecia(?= )", recipe)
    restored = f" --dbname {parameters_of(empty_database_url)['dbname']} "
    kept, erased = ward.read(keys=NEW), ward.read(keys=NEW)
    shell(everything)
    ward.client(NEW).purge([erased])
    later = ward.read(keys=NEW)
    shell(data_keys)

    shell(f"pg_restore {restored} pecia.dump")
    (load,) = re.findall(r"`(pg_restore [^`]*)`", recipe)
    shell(f"{load} {restored} keys.dump")
    (drop,) = re.findall(r"`(DELETE FROM job_keys [^`]*)`", recipe)
    copy = replace(ward, database_url=empty_database_url)
    assert {job_id for (job_id,) in copy.query("SELECT job_id FROM job_keys")} == {kept.id, later.id}
    copy.query(drop)

    assert copy.query("SELECT job_id FROM job_keys") == [(kept.id,)]
    assert copy.client(NEW).job(kept.id).result(timeout=0).text == PLANTED
    with pytest.raises(errors.ConfigurationError, match="The data key of the job was erased"):
        copy.client(NEW).job(erased.id).result(timeout=0)
