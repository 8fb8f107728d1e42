"""Which stores a client talks to."""

import json
import os
from collections.abc import Iterator

import pytest

from command import run_pecia
from pecia import Client, ClientSettings, ConfigurationError
from pecia_schemas import running
from pecia_schemas.running import RunningFleet

URLS = {
    "database_url": "postgresql://me:hunter2@db/pecia",
    "redis_url": "redis://:hunter2@cache",
    "payload_url": "payloads",
}


def test_without_any_store_and_any_fleet_it_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="start `pecia up`"):
        Client()


@pytest.fixture
def fleets() -> Iterator[None]:
    fleets = [
        RunningFleet.model_validate({"pid": os.getpid(), "home": f"/{n}", **URLS, "payload_url": n})
        for n in ("one", "two")
    ]
    for fleet in fleets:
        running.announce(fleet)
    yield
    for fleet in fleets:
        running.withdraw(fleet.home, fleet.pid)


@pytest.mark.usefixtures("fleets")
def test_of_two_fleets_the_home_chooses_else_both_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="/one, /two"):
        Client()
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


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, url in URLS.items():
        monkeypatch.setenv(f"PECIA_{name.upper()}", url)
    assert Client(payload_url="elsewhere")._settings.payload_url == "elsewhere"
    assert Client()._settings.payload_url == "payloads"


def test_stores_of_different_fleets_are_not_mixed() -> None:
    with pytest.raises(ConfigurationError, match="PECIA_REDIS_URL, PECIA_PAYLOAD_URL"):
        Client(URLS["database_url"])


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
