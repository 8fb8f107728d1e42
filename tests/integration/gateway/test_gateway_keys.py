"""What a key may do: scopes, lanes, pages, requests; and when it ends."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateways import Gateway, serving
from pecia import InvalidOptionError, Lane, ReadDocument
from pecia.access import Scope
from pecia.gateway import identity
from real_fleet import RealFleet

STREAM = {"Accept": "text/event-stream"}
FORM: dict[str, Any] = {"files": [("file", ("a.pdf", b"%PDF-1.7"))]}


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_key_is_stored_as_a_hash(fleet: RealFleet, gateway: Gateway) -> None:
    key, shown = gateway.key()
    secret = shown.split("_", 2)[2]
    row = fleet._postgres.execute("SELECT * FROM access_keys WHERE id = %s", (key.id,)).fetchone()
    assert row
    assert row["digest"] == hashlib.sha256(secret.encode()).digest()
    assert secret not in str(row)


def test_the_secret_of_one_key_does_not_open_another(gateway: Gateway) -> None:
    (one, _), (_, other) = gateway.key("clinic"), gateway.key("thief")
    forged = f"pecia_{one.id.hex}_{other.split('_', 2)[2]}"
    assert gateway.showing(forged).get("/v1/key").status_code == 401


def test_a_revoked_key_opens_nothing_in_seconds(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    key, shown = gateway.key()
    bearer = gateway.showing(shown)
    assert bearer.get("/v1/key").status_code == 200
    gateway.connections.access.revoke(key.id)
    monkeypatch.setattr(identity, "_KNOWN_S", 0)
    assert code_of(bearer.get("/v1/key")) == (401, "no_key")


def test_a_key_ends_at_its_time(gateway: Gateway) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert code_of(gateway.bearer(expires_at=past).get("/v1/key")) == (401, "no_key")


def test_a_key_says_what_it_may(gateway: Gateway) -> None:
    bearer = gateway.bearer(scopes=(Scope.SUBMIT, Scope.READ), lanes=(Lane.BULK,), pages_per_day=10)
    bearer.post("/v1/jobs", **FORM, data={"request": '{"priority": "bulk"}'})
    told = bearer.get("/v1/key").json()
    assert (told["key"]["scopes"], told["key"]["lanes"], told["key"]["pages_per_day"]) == (
        ["submit", "read"],
        ["bulk"],
        10,
    )
    assert (told["pages_of_day"], told["pages_in_flight"], "digest" in told["key"]) == (1, 1, False)


def test_a_key_submits_to_its_lanes_alone(gateway: Gateway) -> None:
    bearer = gateway.bearer(lanes=(Lane.BULK,))
    assert code_of(bearer.post("/v1/jobs", **FORM)) == (403, "lane_forbidden")
    assert bearer.post("/v1/jobs", **FORM, data={"request": '{"priority": "bulk"}'}).status_code == 201


def test_pages_in_flight_are_limited_until_they_are_read(
    fleet: RealFleet, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_COUNTED_S", 0)
    bearer = gateway.bearer("limited", pages_in_flight=2)
    assert bearer.post("/v1/jobs", files=FORM["files"] * 2).status_code == 201
    refused = bearer.post("/v1/jobs", **FORM)
    assert (*code_of(refused), refused.headers["retry-after"]) == (429, "pages_in_flight", "5")
    fleet.finish()
    assert bearer.post("/v1/jobs", **FORM).status_code == 201


def test_pages_a_day_are_limited(fleet: RealFleet, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_COUNTED_S", 0)
    fleet.answers(ReadDocument, pages=["one", "two", "three"])
    bearer = gateway.bearer("daily", pages_per_day=3)
    bearer.post("/v1/jobs", **FORM)
    fleet.finish()
    assert code_of(bearer.post("/v1/jobs", **FORM)) == (429, "pages_per_day")
    fleet.advance(timedelta(days=1))
    assert bearer.post("/v1/jobs", **FORM).status_code == 201


def test_requests_a_second_are_limited(fleet: RealFleet) -> None:
    with serving(fleet.settings, gateway_rate=0.1) as slow:
        bearer = slow.bearer()
        refused = [
            answer for answer in (bearer.get("/v1/key") for _ in range(3)) if answer.status_code != 200
        ]
        assert code_of(refused[0]) == (429, "rate")
        assert int(refused[0].headers["retry-after"]) >= 1
        assert slow.bearer().get("/v1/key").status_code == 200, "another key has its own"


def test_streams_of_a_key_are_limited(fleet: RealFleet) -> None:
    with serving(fleet.settings, gateway_streams=1) as narrow:
        bearer = narrow.bearer()
        (job,) = bearer.post("/v1/jobs", **FORM).json()["jobs"]
        path = f"/v1/jobs/{job['id']}/pages"
        with bearer.stream("GET", path, headers=STREAM):
            assert code_of(bearer.get(path, headers=STREAM)) == (429, "streams")
            fleet.finish()
        assert bearer.get(path, headers=STREAM).status_code == 200


@pytest.mark.parametrize("name", ["", "Clinic", "a/b", "a:b", "-a", "x" * 64])
def test_a_tenants_name_has_a_form(gateway: Gateway, name: str) -> None:
    with pytest.raises(InvalidOptionError):
        gateway.key(name)
