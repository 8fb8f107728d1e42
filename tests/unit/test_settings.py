"""Settings are refused when they cannot be meant, with a sentence that never shows a value."""

from datetime import timedelta
from pathlib import Path

import pytest

from pecia_schemas.settings import ClientSettings, SettingsError, WorkerSettings, read_settings
from pecia_schemas.states import Lane
from pecia_workers.queue.lists import LaneRules
from tests.shared.command import run_pecia


def test_an_unknown_name_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_REDIS_ULR", "redis://")
    for settings in (ClientSettings, WorkerSettings):
        with pytest.raises(
            SettingsError, match="PECIA_REDIS_ULR is not a setting of Pecia: did you mean PECIA_REDIS_URL"
        ):
            read_settings(settings)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"PECIA_ENCRYPTION_KEY={}\n", "did you mean PECIA_ENCRYPTION_KEYS"),
        (b"# \xb0\xa1\n", "not UTF-8 text"),
    ],
    ids=["a typing error", "another encoding"],
)
def test_a_file_of_settings_is_held_to_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: bytes, said: str
) -> None:
    """Or documents would be stored unencrypted without a word."""
    monkeypatch.chdir(tmp_path)
    Path(".env").write_bytes(written)
    for settings in (ClientSettings, WorkerSettings):
        with pytest.raises(SettingsError, match=said):
            read_settings(settings)


@pytest.mark.parametrize(
    ("name", "url"), [("REDIS", "localhost:6379"), ("DATABASE", "postgresql://u:hunter2@h:port/x")]
)
@pytest.mark.parametrize("words", [("worker", "engine"), ("doctor",), ("keys", "status")])
def test_a_url_of_no_server_is_refused_and_not_repeated(words: tuple[str, ...], name: str, url: str) -> None:
    stores = {"PECIA_DATABASE_URL": "postgresql://127.0.0.1:1/x", "PECIA_REDIS_URL": "redis://127.0.0.1:1"}
    ran = run_pecia(*words, env=stores | {"PECIA_PAYLOAD_URL": "p", f"PECIA_{name}_URL": url})
    assert (ran.returncode, f"PECIA_{name}_URL is no URL" in ran.stderr, "hunter2" in ran.stderr) == (
        2,
        True,
        False,
    )


def test_a_client_and_a_fleet_understand_each_others_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_LEASE", "20")
    monkeypatch.setenv("PECIA_CLIENT_NAME", "archive")
    assert read_settings(ClientSettings).client_name == "archive"
    assert read_settings(WorkerSettings).lease.total_seconds() == 20


NO_NETWORK = "contains an invalid network: write `10.1.0.0/16`"
NO_BUCKET = "contains an invalid bucket: write `scans`"
REFUSED = [
    *(
        (name, "0", "Input should be greater than 0")
        for name in (
            "LEASE",
            "PART_TIMEOUT",
            "DECODE_TIMEOUT",
            "WEBHOOK_TIMEOUT",
            "ENGINE_TIMEOUT",
            "UPKEEP_INTERVAL",
        )
    ),
    *(
        ("WEBHOOK_SECRET", secret, "is not a valid key")
        for secret in ("whsec_", "whsec_c2hvcnQ=", "whsec_%%%", "a horse")
    ),
    *(
        ("LANE_SHARES", shares, "")
        for shares in ('{"urgent": 0.5}', '{"bulk": 1.5}', '{"normal": 0.6, "bulk": 0.4}', "0.5")
    ),
    *(
        (name, f'["10.0.0.0/8", "{network}"]', NO_NETWORK)
        for name in ("SOURCE_ALLOW", "WEBHOOK_ALLOW")
        for network in ("10.1.0.0/33", "10.1.2.3/16", "files.example.org", "", "http://10.1.0.0")
    ),
    *(
        ("SOURCE_BUCKETS", f'["scans", "{bucket}"]', NO_BUCKET)
        for bucket in ("s3://x", "s3:x", "", "/", "/a", "archive//outbox", "archive/../secrets", "archive/.")
    ),
    *(
        ("MAX_BACKLOG", value, r"is not valid JSON: see docs/settings\.md$")
        for value in ("urgent", '{"urgent"')
    ),
    ("MAX_PAGES", "s3cret-typed-into-the-wrong-line", ""),
    ("POLL_INTERVAL", "-1", ""),
]


@pytest.mark.parametrize(("name", "value", "why"), REFUSED)
def test_a_value_that_cannot_be_meant_is_refused_by_its_name_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(f"PECIA_{name}", value)
    settings = WorkerSettings if name.lower() in WorkerSettings.model_fields else ClientSettings
    with pytest.raises(SettingsError, match=f"^PECIA_{name} {why}") as caught:
        read_settings(settings)
    assert "s3cret" not in str(caught.value)


def test_networks_and_buckets_are_taken_as_they_are_and_there_is_no_secret_unless_one_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PECIA_SOURCE_ALLOW", '["10.1.0.0/16", "10.1.2.3", "fd00::/8"]')
    monkeypatch.setenv("PECIA_SOURCE_BUCKETS", '["scans", "archive/outbox/", "Old_scans/a:b"]')
    settings = read_settings(WorkerSettings)
    assert not settings.webhook_secret
    assert settings.source_allow == ("10.1.0.0/16", "10.1.2.3", "fd00::/8")
    assert settings.source_buckets == ("scans", "archive/outbox/", "Old_scans/a:b")


def test_a_lane_that_is_not_named_has_no_share() -> None:
    settings = WorkerSettings(lane_shares={Lane.BULK: 0.2}, lane_patience=timedelta(7), max_deaths=2)
    rules = LaneRules.of(settings)
    assert rules.shares == {Lane.NORMAL: 0.0, Lane.BULK: 0.2}
    assert (rules.alone_from, rules.patience, rules.drain) == (1, settings.lane_patience, settings.lease)
