"""Verbs in this process: reading by options, erasing and its trail, webhooks; what is printed, and what is refused."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from typer.testing import Result

from pecia import CachedFrom, Client, GenerationOptions, Job, Preset, ReadDocument
from pecia.endpoints import body_of_test
from pecia_schemas.states import new_id
from pecia_schemas.tasks import Preparation, task_from_json
from pecia_workers.outgoing.webhooks import sign
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.receivers import SECRET, Answer, Outbox, Receiver, receiver

__all__ = ["receiver"]


SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}}
Pecia = Callable[..., Result]
NONE = "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"


@pytest.fixture
def pecia(pecia: Pecia, picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pecia:
    """Runs the command where a scan and a schema lie."""
    (tmp_path / "scan.png").write_bytes(picture())
    (tmp_path / "drug.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "list.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    return pecia


def stored(house: House) -> tuple[ReadDocument, timedelta | None, datetime | None]:
    """Return the only task, how long it is to wait, and when it expires."""
    query = "SELECT kind, task, not_before - created_at, expires_at FROM jobs"
    ((kind, task, pause, expires),) = house.query(query)
    read = task_from_json(kind, task)
    assert isinstance(read, ReadDocument)
    return read, pause, expires


def test_options_of_the_command_reach_the_task(pecia: Pecia, house: House) -> None:
    how = ["--preset", "quality", "--temperature", "0.2", "--top-k", "5", "--seed", "7"]
    told = pecia("read", "scan.png", "--fields", "drug.json", "--adapter", "radiology", "--no-cache", *how)
    assert told.exit_code == 0, told.output
    task, _, _ = stored(house)
    assert (task.fields, task.adapter, task.preset) == (SCHEMA, "radiology", Preset.QUALITY)
    assert task.options == GenerationOptions(temperature=0.2, top_k=5, seed=7)
    assert not task.cache


@pytest.mark.parametrize("how", [["--password"], ["--password-file", "secret"]], ids=["typed", "in a file"])
def test_pages_steps_times_and_a_password_that_nothing_shows_reach_the_job(
    pecia: Pecia, house: House, tmp_path: Path, how: list[str]
) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    pages = ["--pages", "1-", "--prepare", "orient,deskew"]
    times = ["--not-before", "2h", "--expires", "2030-01-31"]

    told = pecia("read", "scan.png", *pages, *times, *how, typed="open sesame\n")

    assert told.exit_code == 0, told.output
    assert "open sesame" not in told.output
    task, pause, expires = stored(house)
    assert (task.pages, task.prepare) == ("1-", (Preparation.ORIENT, Preparation.DESKEW))
    assert isinstance(task.password, SecretStr)
    assert task.password.get_secret_value() == "open sesame"
    assert (pause, expires) == (timedelta(hours=2), datetime(2030, 1, 31, tzinfo=UTC))


def test_what_was_not_given_stays_unsaid(pecia: Pecia, house: House) -> None:
    pecia("read", "scan.png")
    task, pause, expires = stored(house)
    assert (task.fields, task.adapter, task.preset, task.options) == (None, None, None, None)
    assert (task.cache, pause, expires) == (True, None, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "3"),
        ("--top-p", "0"),
        ("--repetition-penalty", "0"),
        ("--fields", "scan.png"),
        ("--fields", "list.json"),
        ("--language", "English"),
        ("--expires", "soon"),
        ("--pages", "3-1"),
        ("--prepare", "polish"),
        ("--output", "text.txt"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named(pecia: Pecia, option: str, value: str) -> None:
    told = pecia("read", "scan.png", option, value)
    assert told.exit_code == 2
    assert option in told.output


def test_fields_and_where_a_result_was_taken_from_are_printed(
    pecia: Pecia, client: Client, scribe: Any, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture(), fields=SCHEMA))
    source = CachedFrom(part=new_id(), read_at=datetime(2026, 11, 1, tzinfo=UTC))
    scribe.read(job.id, fields={"drug": "아스피린"}, cached_from=source)

    text, lines = pecia("result", job.id).stdout, pecia("result", job.id, "--json").stdout

    assert text.splitlines()[1:3] == ["text", ""]
    assert json.loads(text.splitlines()[3]) == {"drug": "아스피린"}
    (page,) = json.loads(lines)["pages"]
    assert page == {
        "number": 1,
        "text": "text",
        "verdict": "ok",
        "fields": {"drug": "아스피린"},
        "cached_from": {"part": str(source.part), "read_at": "2026-11-01T00:00:00Z"},
    }


@pytest.fixture
def job(client: Client, scribe: Any, picture: Picture) -> Job[Any]:
    submitted = client.submit(ReadDocument(picture()), metadata={"patient": "4711"})
    scribe.read(submitted.id)
    return submitted.refresh()


def lines(told: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_without_a_yes_or_on_a_dry_run_nothing_is_erased(pecia: Pecia, job: Job[Any]) -> None:
    told = pecia("purge", "--metadata", "patient=4711", "--dry-run")
    assert told.stdout == "Would erase 1 job with 1 result and 0 callbacks.\n"
    refused = pecia("purge", "--job", job.id)
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    assert job.result().pages[0].text == "text"


@pytest.mark.parametrize(("answer", "erased"), [("n\n", False), ("", False), ("y\n", True)])
def test_a_person_is_asked_first(
    pecia: Pecia, job: Job[Any], monkeypatch: pytest.MonkeyPatch, answer: str, erased: bool
) -> None:
    monkeypatch.setattr("pecia.cli.accounts.sys", _Terminal)
    told = pecia("purge", "--before", "0s", typed=answer)
    assert "Erase 1 job with 1 result and 0 callbacks for good?" in told.output
    assert told.exit_code == (0 if erased else 1)
    assert (job.refresh().erased_at is not None) is erased


class _Terminal:
    class stdin:  # noqa: N801  the name it has in `sys`
        @staticmethod
        def isatty() -> bool:
            return True


def test_a_document_that_another_job_holds_is_told_of(
    pecia: Pecia, client: Client, job: Job[Any], picture: Picture
) -> None:
    client.submit(ReadDocument(picture()))
    told = pecia("purge", "--job", job.id, "--yes")
    assert "1 of them share their document with other jobs" in told.stdout


def test_an_erased_job_says_so_wherever_it_is_shown(pecia: Pecia, job: Job[Any]) -> None:
    pecia("purge", "--job", job.id, "--yes")
    erased_at = job.refresh().erased_at
    assert erased_at is not None

    told, as_json = pecia("result", job.id), pecia("result", job.id, "--json")

    assert told.exit_code == as_json.exit_code == 1
    assert f"erased at {erased_at:%Y-%m-%d %H:%M:%S}" in told.stderr
    assert (lines(as_json)[0]["pages"], lines(as_json)[0]["erased_at"]) == ([], erased_at.isoformat())
    assert "erased" in pecia("list").stdout
    assert lines(pecia("list", "--json"))[0]["erased_at"] == erased_at.isoformat()


def test_a_repeated_read_whose_result_was_erased_ends_with_1(
    pecia: Pecia, client: Client, house: House, picture: Picture
) -> None:
    keyed = client.submit(ReadDocument(picture()), idempotency_key="scan")
    keyed.cancel()
    house.query("UPDATE jobs SET state = 'succeeded', erased_at = now() WHERE id = %s", keyed.id)
    told = pecia("read", "scan.png", "--key", "scan", "--wait")
    assert told.exit_code == 1
    assert "succeeded, erased at" in told.stderr


def test_the_audit_trail_says_who_read_and_who_erased(pecia: Pecia, job: Job[Any]) -> None:
    ward = {"PECIA_CLIENT_NAME": "ward-3"}
    pecia("result", job.id, **ward)
    list(job.pages())
    told = pecia("purge", "--job", job.id, "--yes", "--json", "--reason", "request 4711", **ward)
    assert lines(told) == [
        {"job_id": str(job.id), "results": 1, "deliveries": 0, "reasons": 0, "document": "erased"}
    ]

    by_ward = lines(pecia("audit", "--job", job.id, "--client", "ward-3", "--json"))
    everything = pecia("audit", "--since", "1h")

    assert [entry["action"] for entry in by_ward] == ["erased", "result"]
    assert by_ward[0]["reason"] == "request 4711"
    assert everything.stdout.count(str(job.id)) == 3
    assert "pages" in everything.stdout
    assert "request 4711" in everything.stdout


@pytest.fixture
def webhook(pecia: Pecia) -> Pecia:
    return partial(pecia, "webhook")


def added(webhook: Pecia, url: str, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(webhook("add", url, "--json", *options).stdout)
    return made


def test_an_endpoint_is_added_listed_rotated_and_removed(webhook: Pecia) -> None:
    said = webhook("add", "https://example.org/hook", "--event", "job.failed").stdout
    found = re.fullmatch(r"endpoint (\S+)\nsecret   (whsec_\S+)\n", said)
    assert found
    (listed,) = lines(webhook("list", "--json"))
    assert (listed["id"], listed["events"], "secret" in listed) == (found[1], ["job.failed"], False)
    assert "well" in webhook("list").stdout
    rotated = webhook("rotate", found[1], "--overlap", "2h").stdout
    assert found[2] not in rotated
    assert "former secret too" in rotated
    assert webhook("remove", found[1]).exit_code == 0
    assert webhook("list", "--json").stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        *("purge", "purge --before soon", f"purge --job {NONE}"),
        *("webhook add nowhere", f"webhook remove {NONE}", "webhook replay"),
        f"webhook rotate {NONE} --overlap soon",
    ],
)
def test_what_cannot_be_meant_is_refused(stores: dict[str, str], words: str) -> None:
    assert run_pecia(*words.split(), env=stores).returncode == 2


def test_a_test_says_how_it_went(webhook: Pecia, receiver: Receiver, stores: dict[str, str]) -> None:
    endpoint = added(webhook, receiver.url)["id"]
    receiver.planned = [Answer(), Answer(500, text="out of order")]
    with capture_logs(), Outbox(stores["PECIA_DATABASE_URL"]).working(webhook_attempts=1):
        well, broken = webhook("test", endpoint, "--json"), webhook("test", endpoint, "--json")
    (delivered,), (refused,) = lines(well), lines(broken)
    assert (well.exit_code, delivered["state"], delivered["type"]) == (0, "delivered", "webhook.test")
    assert (broken.exit_code, refused["attempts"][0]["reply"]) == (1, "out of order")


def test_a_test_that_nobody_tries_says_so(webhook: Pecia, receiver: Receiver) -> None:
    told = webhook("test", added(webhook, receiver.url)["id"], "--timeout", "0.3")
    assert told.exit_code == 3
    assert "webhook worker" in told.output


def test_dead_deliveries_are_shown_try_by_try_and_replayed(
    webhook: Pecia, client: Client, picture: Picture, receiver: Receiver, stores: dict[str, str]
) -> None:
    endpoint = added(webhook, receiver.url)["id"]
    receiver.planned = [Answer(500, text="no room")]
    client.submit(ReadDocument(picture())).cancel()
    with capture_logs(), Outbox(stores["PECIA_DATABASE_URL"]).working(webhook_attempts=1):
        eventually(lambda: client.deliveries(state="dead"))
        (dead,) = lines(webhook("deliveries", "--state", "dead", "--endpoint", endpoint, "--json"))
        assert dead["last_error"] == "http_500"
        assert "no room" in webhook("deliveries", dead["id"]).stdout
        assert webhook("replay", "--all").stdout == "1 deliveries are sent again.\n"
        eventually(lambda: client.deliveries(state="delivered"))
    assert webhook("replay", "--all").stdout == "0 deliveries are sent again.\n"


def post(url: str, secret: str) -> int:
    """Send a signed notice and return the status of the answer."""
    notice = body_of_test() | {"timestamp": "2026-11-21T12:00:00Z"}
    signed = sign(new_id(), notice, [secret])
    request = Request(url, data=signed.body, headers=dict(signed.headers))  # noqa: S310  loopback
    try:
        with urlopen(request, timeout=WAIT_S) as reply:  # noqa: S310
            return int(reply.status)
    except HTTPError as refusal:
        return refusal.code


def test_a_listener_prints_what_verifies_and_refuses_the_rest() -> None:
    options = ["--port", "0", "--secret", SECRET, "--count", "3", "--json"]
    command = [sys.executable, "-m", "pecia", "webhook", "listen", *options]
    secrets = (SECRET, "whsec_" + "bm90aGVybm90aGVybm90aGVybm90aGVy", SECRET)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stderr
            url = listener.stderr.readline().removeprefix("Listening on ").strip()
            statuses = [post(url, secret) for secret in secrets]
            told, complaints = listener.communicate(timeout=WAIT_S)
        finally:
            listener.kill()
    assert statuses == [204, 401, 204]
    assert [json.loads(line)["type"] for line in told.splitlines()] == ["webhook.test"] * 2
    assert "not signed with this secret" in complaints
    assert listener.returncode == 0


def test_a_listener_without_a_secret_says_what_to_set(webhook: Pecia) -> None:
    told = webhook("listen")
    assert told.exit_code == 2
    assert "PECIA_WEBHOOK_SECRET" in told.output
