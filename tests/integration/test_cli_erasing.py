"""`pecia purge` asks before it erases and says what it erased; `pecia audit` shows who read and erased."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from command import run_pecia
from house import House
from pecia import Client, Job, ReadDocument
from pecia.cli.app import app

Pecia = Callable[..., Result]


@pytest.fixture
def pecia(stores: dict[str, str]) -> Pecia:
    def run(*arguments: str, answer: str | None = None) -> Result:
        environment = stores | {"PECIA_CLIENT_NAME": "ward-3"}
        return CliRunner().invoke(app, arguments, env=environment, input=answer)

    return run


@pytest.fixture
def job(client: Client, scribe: Any, picture: Callable[..., bytes]) -> Job[Any]:
    submitted = client.submit(ReadDocument(picture()), metadata={"patient": "4711"})
    scribe.read(submitted.id)
    return submitted.refresh()


def lines(told: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_without_a_yes_or_on_a_dry_run_nothing_is_erased(pecia: Pecia, job: Job[Any]) -> None:
    told = pecia("purge", "--metadata", "patient=4711", "--dry-run")
    assert told.stdout == "Would erase 1 jobs with 1 results and 0 callbacks.\n"
    refused = pecia("purge", "--job", str(job.id))
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    assert job.result().pages[0].text == "text"


@pytest.mark.parametrize(("answer", "erased"), [("n\n", False), ("", False), ("y\n", True)])
def test_a_person_is_asked_first(
    pecia: Pecia, job: Job[Any], monkeypatch: pytest.MonkeyPatch, answer: str, erased: bool
) -> None:
    monkeypatch.setattr("pecia.cli.accounts.sys", _Terminal)
    told = pecia("purge", "--before", "0s", answer=answer)
    assert "Erase 1 jobs with 1 results and 0 callbacks for good?" in told.output
    assert told.exit_code == (0 if erased else 1)
    assert (job.refresh().erased_at is not None) is erased


class _Terminal:
    class stdin:  # noqa: N801  the name it has in `sys`
        @staticmethod
        def isatty() -> bool:
            return True


def test_a_document_that_another_job_holds_is_told_of(
    pecia: Pecia, client: Client, job: Job[Any], picture: Callable[..., bytes]
) -> None:
    client.submit(ReadDocument(picture()))
    told = pecia("purge", "--job", str(job.id), "--yes")
    assert "1 of them hold documents that other jobs were given too" in told.stdout


@pytest.mark.parametrize(
    "arguments",
    [["purge"], ["purge", "--before", "soon"], ["purge", "--job", "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"]],
)
def test_a_purge_that_cannot_be_meant_is_refused(stores: dict[str, str], arguments: list[str]) -> None:
    assert run_pecia(*arguments, env=stores).returncode == 2


def test_an_erased_job_says_so_wherever_it_is_shown(pecia: Pecia, job: Job[Any]) -> None:
    pecia("purge", "--job", str(job.id), "--yes")
    erased_at = job.refresh().erased_at
    assert erased_at is not None

    told, as_json = pecia("result", str(job.id)), pecia("result", str(job.id), "--json")

    assert told.exit_code == as_json.exit_code == 1
    assert f"erased at {erased_at:%Y-%m-%d %H:%M:%S}" in told.stderr
    assert (lines(as_json)[0]["pages"], lines(as_json)[0]["erased_at"]) == ([], erased_at.isoformat())
    assert "erased" in pecia("list").stdout
    assert lines(pecia("list", "--json"))[0]["erased_at"] == erased_at.isoformat()


def test_a_repeated_read_whose_result_was_erased_ends_with_1(
    pecia: Pecia, client: Client, house: House, picture: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "scan.png").write_bytes(picture())
    keyed = client.submit(ReadDocument(picture()), idempotency_key="scan")
    keyed.cancel()
    arguments = ("read", str(tmp_path / "scan.png"), "--key", "scan", "--wait")
    house.query("UPDATE jobs SET state = 'succeeded', erased_at = now() WHERE id = %s", keyed.id)
    told = pecia(*arguments)
    assert told.exit_code == 1
    assert "succeeded, erased at" in told.stderr


def test_the_audit_trail_says_who_read_and_who_erased(pecia: Pecia, job: Job[Any]) -> None:
    pecia("result", str(job.id))
    list(job.pages())
    told = pecia("purge", "--job", str(job.id), "--yes", "--json", "--reason", "request 4711")
    assert lines(told) == [
        {"job_id": str(job.id), "results": 1, "deliveries": 0, "reasons": 0, "document": "erased"}
    ]

    by_ward = lines(pecia("audit", "--job", str(job.id), "--client", "ward-3", "--json"))
    everything = pecia("audit", "--since", "1h")

    assert [entry["action"] for entry in by_ward] == ["erased", "result"]
    assert by_ward[0]["reason"] == "request 4711"
    assert everything.stdout.count(str(job.id)) == 3
    assert "pages" in everything.stdout
    assert "request 4711" in everything.stdout
