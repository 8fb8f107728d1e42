"""Which stores a client talks to, and how it finds the fleets that run on its machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pecia import Client, ClientSettings, ConfigurationError
from pecia_schemas import running
from pecia_schemas.running import NoFleetError, RunningFleet
from tests.shared.command import run_pecia

URLS = {
    "database_url": "postgresql://me:hunter2@db/pecia",
    "redis_url": "redis://:hunter2@cache",
    "payload_url": "payloads",
}


def test_without_any_store_and_any_fleet_it_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="No fleet runs on this machine: start `pecia up`"):
        Client()


@pytest.fixture
def fleets() -> None:
    for name in ("one", "two"):
        running.announce(_fleet(os.getpid(), f"/{name}", payload_url=name))


@pytest.mark.usefixtures("fleets")
def test_of_two_fleets_the_home_chooses_else_both_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigurationError, match=r"choose one by --home or PECIA_HOME\. They are /one, /two\."
    ):
        Client()
    with pytest.raises(NoFleetError, match=r"No fleet runs in /other: .* Fleets run in /one, /two\."):
        running.find("/other")
    assert running.find("/one/../two/").home == "/two"
    assert Client(settings=ClientSettings(home="/two"))._settings.payload_url == "two"
    monkeypatch.setenv("PECIA_HOME", "/one")
    assert Client()._settings.payload_url == "one"
    assert Client(*URLS.values())._settings.payload_url == URLS["payload_url"]


@pytest.mark.usefixtures("fleets")
def test_the_command_prints_what_other_programs_need_to_reach_the_chosen_fleet() -> None:
    unclear, chosen = run_pecia("env"), run_pecia("--home", "/two", "env")

    assert unclear.returncode == 2
    assert "They are /one, /two." in " ".join(unclear.stderr.split())
    assert chosen.stdout.splitlines() == [
        "export PECIA_DATABASE_URL=postgresql://me:hunter2@db/pecia",
        "export PECIA_REDIS_URL=redis://:hunter2@cache",
        "export PECIA_PAYLOAD_URL=two",
    ]
    assert json.loads(run_pecia("--home", "/one", "env", "--json").stdout)["PECIA_PAYLOAD_URL"] == "one"


def test_an_argument_wins_over_the_environment_and_stores_of_different_fleets_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigurationError, match="PECIA_REDIS_URL, PECIA_PAYLOAD_URL"):
        Client(URLS["database_url"])
    for name, url in URLS.items():
        monkeypatch.setenv(f"PECIA_{name.upper()}", url)
    assert Client(payload_url="elsewhere")._settings.payload_url == "elsewhere"
    assert Client()._settings.payload_url == "payloads"


def test_a_mistyped_setting_is_refused_with_the_right_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_DATABASE_URL", URLS["database_url"])
    monkeypatch.setenv("PECIA_POLL_INTERVALL", "1")
    with pytest.raises(ConfigurationError, match="PECIA_POLL_INTERVAL") as refusal:
        Client()
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("name", ["database_url", "redis_url"])
def test_a_url_that_is_none_is_refused_without_repeating_it(name: str) -> None:
    client = Client(**{**URLS, name: "hunter2"}, settings=ClientSettings())
    with pytest.raises(ConfigurationError, match=f"PECIA_{name.upper()}") as refusal:
        list(client.jobs())
    assert "hunter2" not in str(refusal.value)


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def _fleet(pid: int, home: str = "/h", **urls: str) -> RunningFleet:
    return RunningFleet.model_validate({"pid": pid, "home": home, **URLS, **urls})


@pytest.fixture
def fleet() -> RunningFleet:
    fleet = _fleet(os.getpid())
    running.announce(fleet)
    return fleet


def test_an_announced_fleet_is_found_until_its_own_supervisor_withdraws_it(fleet: RunningFleet) -> None:
    running.withdraw(fleet.home, fleet.pid + 1)
    assert running.find().model_dump(exclude={"started"}) == fleet.model_dump(exclude={"started"})
    running.withdraw(fleet.home, fleet.pid)
    assert running.running_fleets() == []


def test_the_fleet_of_a_dead_process_is_not_found() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    running.announce(_fleet(supervisor.pid))
    assert running.find()
    supervisor.communicate()
    assert running.running_fleets() == []


def test_a_note_of_another_process_or_user_or_one_that_cannot_be_read_is_none(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (note,) = running.notes().iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    announced = note.read_text()
    for content in (fleet.model_copy(update={"started": 1}).model_dump_json(), "{"):
        note.write_text(content)
        assert running.running_fleets() == []
    note.write_text(announced)
    assert running.running_fleets()
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert running.running_fleets() == []
