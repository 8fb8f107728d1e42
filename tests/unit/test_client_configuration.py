"""Which stores a client talks to."""

from __future__ import annotations

import os

import pytest

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


def test_the_fleet_of_this_machine_is_found() -> None:
    running.announce(RunningFleet.model_validate({"pid": os.getpid(), "home": "h", **URLS}))
    try:
        settings = Client()._settings
    finally:
        running.withdraw(os.getpid())
    assert settings.database_url.get_secret_value() == URLS["database_url"]
    assert settings.payload_url == "payloads"


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
