"""Parts that the fleet gave up: they are kept with their story, and run again when somebody says so."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from command import run_pecia
from house import House
from limits import WAIT_S
from pecia import Client, FailureCode, Job, JobState, ReadDocument
from pecia.errors import InvalidOptionError
from pecia_schemas.results import Document

PDF = b"%PDF-1.4"
HOOK = "https://hook.example/"


@pytest.fixture
def job(client: Client, scribe: Any) -> Job[Document]:
    """A document of four pages: read, damaged, poisonous, and failed in every attempt."""
    job = client.submit(ReadDocument(PDF), webhook=HOOK)
    scribe.cut(job.id, 4)
    scribe.read(job.id, 0, "kept")
    scribe.fail(job.id, 1, FailureCode.DAMAGED)
    scribe.fail(job.id, 2, FailureCode.POISONED)
    scribe.fail(job.id, 3, FailureCode.TIMEOUT, retry_in=timedelta())
    scribe.fail(job.id, 3, FailureCode.TIMEOUT)
    return job.refresh()


def test_a_retry_runs_them_alone_again(client: Client, scribe: Any, job: Job[Document], house: House) -> None:
    dead = client.dead_parts()
    assert [(part.attempts, part.strikes, part.worker) for part in dead] == [
        (2, 1, "scribe"),
        (1, 0, "scribe"),
    ]
    with pytest.raises(InvalidOptionError, match="no dead part"):
        client.retry_dead([dead[0].id, uuid4()])

    (reopened,) = client.retry_dead(dead)

    assert (reopened.id, reopened.state) == (job.id, JobState.QUEUED)
    assert (reopened.progress.done, reopened.progress.failed, reopened.progress.total) == (1, 1, 4)
    rows = house.query("SELECT state, strikes, deaths FROM parts WHERE stage = 'read' ORDER BY ordinal")
    assert rows == [("done", 0, 0), ("failed", 0, 0), ("queued", 0, 0), ("queued", 0, 0)]
    assert client.dead_parts() == []

    scribe.read(job.id, 2, "third")
    scribe.read(job.id, 3, "fourth")
    document = job.result(timeout=WAIT_S)
    assert [page.text for page in document.pages] == ["kept", "third", "fourth"]
    assert [missing.failure.code for missing in document.failed] == [FailureCode.DAMAGED]


def test_they_are_listed_shown_and_tried_again_on_the_command_line(
    client: Client, scribe: Any, job: Job[Document], stores: dict[str, str]
) -> None:
    def dead(*words: str) -> str:
        return run_pecia("dead", *words, env=stores).stdout

    timeout, poisoned = client.dead_parts()

    listed = [json.loads(line) for line in dead("list", "--json").splitlines()]
    assert [part["id"] for part in listed] == [str(timeout.id), str(poisoned.id)]
    assert str(poisoned.id) in dead("list", "--code", "poisoned")
    assert json.loads(dead("show", str(timeout.id), "--json"))["events"][-1]["reason"] == "timeout"
    assert "poisoned: The part took its worker down" in dead("show", str(poisoned.id))

    assert dead("retry", str(timeout.id)) == f"{job.id} queued 3/4\n"
    assert [part.id for part in client.dead_parts()] == [poisoned.id]
    scribe.read(job.id, 3)
    assert dead("retry", "--all", "--since", "1h") == f"{job.id} queued 3/4\n"
    assert dead("retry", "--all") == ""
    assert run_pecia("dead", "retry", env=stores).returncode == 2
