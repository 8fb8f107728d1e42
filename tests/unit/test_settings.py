"""Settings are refused when they cannot be meant, with a sentence that never shows a value."""

from __future__ import annotations

import pytest

from pecia_schemas import Lane
from pecia_schemas.settings import ClientSettings, SettingsError, WorkerSettings, read_settings
from pecia_workers.broker import LaneRules


def test_an_unknown_name_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_REDIS_ULR", "redis://")
    for settings in (ClientSettings, WorkerSettings):
        with pytest.raises(
            SettingsError, match="PECIA_REDIS_ULR is no setting of Pecia: did you mean PECIA_REDIS_URL"
        ):
            read_settings(settings)


def test_a_client_and_a_fleet_understand_each_others_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_LEASE", "20")
    monkeypatch.setenv("PECIA_CLIENT_NAME", "archive")
    assert read_settings(ClientSettings).client_name == "archive"
    assert read_settings(WorkerSettings).lease.total_seconds() == 20


def test_the_sentence_names_the_setting_and_not_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_MAX_PAGES", "s3cret-typed-into-the-wrong-line")
    with pytest.raises(SettingsError, match=r"^PECIA_MAX_PAGES ") as caught:
        read_settings(WorkerSettings)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_c2hvcnQ=", "whsec_%%%", "correct horse battery staple"])
def test_a_webhook_secret_is_a_real_key(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("PECIA_WEBHOOK_SECRET", secret)
    with pytest.raises(SettingsError, match="PECIA_WEBHOOK_SECRET is no key"):
        read_settings(WorkerSettings)


def test_without_a_webhook_secret_there_is_none() -> None:
    assert not read_settings(WorkerSettings).webhook_secret


@pytest.mark.parametrize(
    "shares", ['{"urgent": 0.5}', '{"bulk": 1.5}', '{"normal": 0.6, "bulk": 0.4}', "0.5"]
)
def test_shares_of_lanes_leave_something_to_the_urgent_one(
    monkeypatch: pytest.MonkeyPatch, shares: str
) -> None:
    monkeypatch.setenv("PECIA_LANE_SHARES", shares)
    with pytest.raises(SettingsError, match="PECIA_LANE_SHARES"):
        read_settings(WorkerSettings)


@pytest.mark.parametrize("name", ["PECIA_SOURCE_ALLOW", "PECIA_WEBHOOK_ALLOW"])
@pytest.mark.parametrize(
    "network", ["10.1.0.0/33", "10.1.2.3/16", "files.example.org", "", "http://10.1.0.0"]
)
def test_what_is_no_network_is_not_allowed(monkeypatch: pytest.MonkeyPatch, name: str, network: str) -> None:
    monkeypatch.setenv(name, f'["10.0.0.0/8", "{network}"]')
    with pytest.raises(SettingsError, match=f"^{name} names what is no network: write `10.1.0.0/16`"):
        read_settings(WorkerSettings)


@pytest.mark.parametrize(
    "bucket", ["s3://x", "s3:x", "", "/", "/scans", "archive//outbox", "archive/../secrets", "archive/."]
)
def test_what_is_no_bucket_is_not_read(monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    monkeypatch.setenv("PECIA_SOURCE_BUCKETS", f'["scans", "{bucket}"]')
    with pytest.raises(SettingsError, match=r"^PECIA_SOURCE_BUCKETS names what is no bucket: write `scans`"):
        read_settings(WorkerSettings)


def test_networks_and_buckets_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_SOURCE_ALLOW", '["10.1.0.0/16", "10.1.2.3", "fd00::/8"]')
    monkeypatch.setenv("PECIA_SOURCE_BUCKETS", '["scans", "archive/outbox/", "Old_scans/a:b"]')
    settings = read_settings(WorkerSettings)
    assert settings.source_allow == ("10.1.0.0/16", "10.1.2.3", "fd00::/8")
    assert settings.source_buckets == ("scans", "archive/outbox/", "Old_scans/a:b")


def test_a_lane_that_is_not_named_has_no_share() -> None:
    rules = LaneRules.of(WorkerSettings(lane_shares={Lane.BULK: 0.2}, max_deaths=2))

    assert rules.shares == {Lane.NORMAL: 0.0, Lane.BULK: 0.2}
    assert rules.alone_from == 1


@pytest.mark.parametrize("value", ["urgent", '{"urgent"'])
def test_a_setting_that_is_no_json_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PECIA_MAX_BACKLOG", value)
    with pytest.raises(SettingsError, match=r"^PECIA_MAX_BACKLOG is no JSON: see docs/settings\.md$"):
        read_settings(ClientSettings)


def test_a_time_is_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_POLL_INTERVAL", "-1")
    with pytest.raises(SettingsError, match="PECIA_POLL_INTERVAL"):
        read_settings(ClientSettings)
