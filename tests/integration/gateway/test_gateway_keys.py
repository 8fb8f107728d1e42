"""What a key may do, and when it ends; it sees its own tenant's jobs and no others, in every route there is."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from fastapi.routing import APIRoute

from pecia import Client, InvalidOptionError, Lane, QueueFullError, ReadDocument
from pecia.accounts import AccessUsage, Scope
from pecia.cli.accounts import variables_of
from pecia.errors import EndpointLimitError
from pecia.gateway import identity, jobs, submitting, tenants
from tests.shared.command import run_pecia
from tests.shared.gateways import Gateway
from tests.shared.real_fleet import RealFleet

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


def test_a_key_ends_in_time_and_a_revoked_one_soon(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert code_of(gateway.bearer(expires_at=past).get("/v1/key")) == (401, "no_key")
    key, shown = gateway.key()
    bearer = gateway.showing(shown)
    assert bearer.get("/v1/key").status_code == 200
    gateway.connections.access.revoke(key.id)
    monkeypatch.setattr(identity, "_KNOWN_S", 0)
    assert code_of(bearer.get("/v1/key")) == (401, "no_key")


def test_a_rotated_key_opens_beside_its_successor_until_the_overlap_ends(
    gateway: Gateway, fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_KNOWN_S", 0)
    limits: dict[str, Any] = {"scopes": (Scope.READ,), "lanes": (Lane.BULK,), "pages_per_day": 10}
    key, shown = gateway.key(**limits, expires_at=datetime.now(UTC) + timedelta(days=90))
    made, fresh = gateway.connections.access.rotate(key.id, timedelta(days=7))
    kept = ("tenant", "name", "scopes", "lanes", "pages_per_day", "pages_in_flight")
    assert [getattr(made, name) for name in kept] == [getattr(key, name) for name in kept]
    assert made.expires_at
    assert key.expires_at
    assert made.expires_at - made.created_at == key.expires_at - key.created_at
    assert [gateway.showing(text).get("/v1/key").status_code for text in (shown, fresh)] == [200, 200]
    fleet.advance(timedelta(days=7))
    assert [gateway.showing(text).get("/v1/key").status_code for text in (shown, fresh)] == [401, 200]
    with pytest.raises(InvalidOptionError, match=f"Key {key.id} is not valid"):
        gateway.connections.access.rotate(key.id, timedelta())


def test_the_command_rotates_a_key_and_says_when_the_former_ends(gateway: Gateway, fleet: RealFleet) -> None:
    key, shown = gateway.key()
    made = run_pecia("access", "rotate", key.id, "--overlap", "0s", env=variables_of(fleet.settings))
    assert made.returncode == 0, made.stderr
    assert f"Key {key.id} ends in 0s" in made.stderr
    fresh = made.stdout.strip()
    assert [gateway.showing(text).get("/v1/key").status_code for text in (fresh, shown)] == [200, 401]
    refused = run_pecia("access", "rotate", key.id, env=variables_of(fleet.settings))
    assert (refused.returncode, refused.stderr.startswith(f"pecia: Key {key.id} is not valid;")) == (2, True)


def test_a_key_says_what_it_may_and_submits_to_its_lanes_alone(gateway: Gateway) -> None:
    bearer = gateway.bearer(scopes=(Scope.SUBMIT, Scope.READ), lanes=(Lane.BULK,), pages_per_day=10)
    assert code_of(bearer.post("/v1/jobs", **FORM)) == (403, "lane_forbidden")
    assert bearer.post("/v1/jobs", **FORM, data={"request": '{"priority": "bulk"}'}).status_code == 201
    told = bearer.get("/v1/key").json()
    assert {name: told["key"][name] for name in ("scopes", "lanes", "pages_per_day")} == {
        "scopes": ["submit", "read"],
        "lanes": ["bulk"],
        "pages_per_day": 10,
    }
    assert (told["pages_of_day"], told["pages_in_flight"], "digest" in told["key"]) == (1, 1, False)


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


def test_a_call_that_a_limit_ends_names_the_accepted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_COUNTED_S", 0)
    monkeypatch.setattr("pecia.remote.calls.FILES", 2)
    _, key = gateway.key("limited", pages_in_flight=3)
    with Client(gateway.url, api_key=key) as client:
        with pytest.raises(QueueFullError) as full:
            client.submit_many([ReadDocument(b"%PDF-1.7")] * 5)
        assert full.value.accepted is not None
        assert [job.id for job in full.value.accepted] == [job.id for job in client.jobs()][::-1]
        assert len(full.value.accepted) == 2


def test_pages_a_day_are_limited(fleet: RealFleet, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_COUNTED_S", 0)
    fleet.answers(ReadDocument, pages=["one", "two", "three"])
    bearer = gateway.bearer("daily", pages_per_day=3)
    bearer.post("/v1/jobs", **FORM)
    fleet.finish()
    assert code_of(bearer.post("/v1/jobs", **FORM)) == (429, "pages_per_day")
    fleet.advance(timedelta(days=1))
    assert bearer.post("/v1/jobs", **FORM).status_code == 201


@pytest.mark.parametrize("name", ["", "Clinic", "a/b", "a:b", "-a", "x" * 64])
def test_a_tenants_name_has_a_form(gateway: Gateway, name: str) -> None:
    with pytest.raises(InvalidOptionError):
        gateway.key(name)


PDF = b"%PDF-1.7 of the clinic"
SECRET = "Amoxicillin"
HOOK = "https://clinic.example/hook"

ROUTES = [
    (method, route.path)
    for router in (submitting.router, jobs.router, tenants.webhooks)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/jobs"): {"json": {"tasks": [{"url": "https://example.org/a.pdf"}], "idempotency_keys": ["visit"]}},
    ("POST", "/batches"): {"json": {"name": "week"}},
    ("POST", "/documents"): {"files": [("file", ("b.pdf", b"%PDF-1.7 of a thief"))]},
    ("POST", "/webhooks"): {"json": {"url": "https://other.example/hook"}},
    ("POST", "/jobs/{job_id}/split"): {"json": {"change": {"action": "accept", "document": 1}}},
}  # fmt: skip


@pytest.fixture
def owned(fleet: RealFleet, gateway: Gateway) -> dict[str, str]:
    """Return the ids of what a clinic has: a finished job, a webhook, a delivery to it and one of the job's own."""
    fleet.answers(ReadDocument, text=SECRET)
    clinic = gateway.bearer("clinic")
    hook = clinic.post("/v1/webhooks", json={"url": HOOK}).json()
    form = {
        "request": json.dumps(
            {"metadata": {"patient": SECRET}, "idempotency_keys": ["visit"], "batch": "week"}
        )
    }
    (job,) = clinic.post("/v1/jobs", files=[("file", ("a.pdf", PDF))], data=form).json()["jobs"]
    fleet.finish()
    fleet.fan_out()
    (delivery,) = clinic.get("/v1/deliveries").json()
    return {
        "job_id": job["id"],
        "webhook_id": hook["id"],
        "delivery_id": delivery["id"],
        "batch": job["batch"],
    }


def test_a_foreign_key_does_nothing(owned: dict[str, str], gateway: Gateway) -> None:
    clinic, thief = gateway.bearer("clinic"), gateway.bearer("thief")
    nowhere = {name: str(uuid4()) for name in owned}
    before = _all_of(clinic, owned)
    for method, path in ROUTES:
        body = BODIES.get((method, path), {})
        answer = thief.request(method, "/v1" + path.format(**owned), **body)
        if "{" in path:
            unknown = thief.request(method, "/v1" + path.format(**nowhere), **body)
            assert (answer.status_code, answer.json()["code"]) == (404, unknown.json()["code"]), path
            for one, ids in ((answer, owned), (unknown, nowhere)):
                for name in ids:
                    assert SECRET not in one.text.replace(ids[name], ""), path
        else:
            assert answer.status_code < 300, path
            assert not any(found in answer.text for found in (SECRET, HOOK, *owned.values())), path
        assert _all_of(clinic, owned) == before, (method, path)


def test_without_a_key_or_its_scope_there_is_nothing(gateway: Gateway) -> None:
    for key in (None, "x", "pecia_x_y", f"pecia_{UUID(int=0).hex}_secret"):
        for answer in _everywhere(gateway.showing(key)):
            assert code_of(answer) == (401, "no_key")
    for answer in _everywhere(gateway.bearer("clinic", scopes=()), besides="/key"):
        assert code_of(answer) == (403, "scope_missing")


def test_lists_that_are_filtered_by_ids_hold_own_jobs_alone(owned: dict[str, str], gateway: Gateway) -> None:
    thief, asked = gateway.bearer("thief"), {"id": owned["job_id"]}
    assert thief.get("/v1/jobs", params=asked).json()["jobs"] == []
    assert thief.get("/v1/deliveries", params={"job_id": owned["job_id"]}).json() == []
    assert thief.get("/v1/deliveries", params={"webhook_id": owned["webhook_id"]}).json() == []


def test_an_equal_document_of_another_tenant_stays_and_is_not_betrayed(
    owned: dict[str, str], fleet: RealFleet, gateway: Gateway
) -> None:
    clinic, thief = gateway.bearer("clinic"), gateway.bearer("thief")
    ask: dict[str, Any] = {"files": [("file", ("a.pdf", PDF))]}

    def erase(bearer: Any) -> str:
        (job,) = bearer.post("/v1/jobs", **ask).json()["jobs"]
        fate: str = bearer.request("DELETE", f"/v1/jobs/{job['id']}").json()["document"]
        return fate

    assert erase(thief) == "erased", "as if nobody else had it"
    assert erase(clinic) == "shared", "by the tenant's own other job"
    row = fleet._postgres.execute("SELECT payload FROM jobs WHERE id = %s", (owned["job_id"],)).fetchone()
    assert row
    assert gateway.connections.holds(row["payload"])


@pytest.mark.parametrize("whole", [True, False])
def test_foreign_batches_are_not_joined_or_counted(
    whole: bool, owned: dict[str, str], gateway: Gateway
) -> None:
    thief = gateway.bearer("thief")
    batch = owned["batch"] if whole else owned["batch"][:13]
    joined = thief.post(
        "/v1/jobs", files=[("file", ("a.pdf", PDF))], data={"request": json.dumps({"batch": owned["batch"]})}
    )
    assert code_of(joined) == (404, "batch_not_found")
    for path in ("/v1/jobs", "/v1/counts", "/v1/pages"):
        assert code_of(thief.get(path, params={"batch": batch})) == (404, "batch_not_found")


def test_an_idempotency_key_is_the_tenants_own(owned: dict[str, str], gateway: Gateway) -> None:
    ask: dict[str, Any] = {"files": [("file", ("a.pdf", PDF))], "headers": {"Idempotency-Key": "visit"}}
    (again,) = gateway.bearer("clinic").post("/v1/jobs", **ask).json()["jobs"]
    (other,) = gateway.bearer("thief").post("/v1/jobs", **ask).json()["jobs"]
    assert (again["id"], again["created"]) == (owned["job_id"], False)
    assert (other["id"] == owned["job_id"], other["created"]) == (False, True)


def test_a_job_with_the_stored_key_past_the_gateway_is_foreign(fleet: RealFleet, gateway: Gateway) -> None:
    client: Client = fleet.client()
    client.submit(ReadDocument(PDF), idempotency_key="thief:visit", metadata={"patient": SECRET})
    ask: dict[str, Any] = {"files": [("file", ("a.pdf", PDF))], "headers": {"Idempotency-Key": "visit"}}
    answer = gateway.bearer("thief").post("/v1/jobs", **ask)
    assert (answer.status_code, SECRET in answer.text) == (409, False)


def test_a_webhook_is_told_of_its_tenants_jobs_alone(fleet: RealFleet, gateway: Gateway) -> None:
    clinic, thief = gateway.bearer("clinic"), gateway.bearer("thief")
    thief.post("/v1/webhooks", json={"url": HOOK})
    operator: Client = fleet.client()
    operator.add_endpoint("https://operator.example/hook")
    clinic.post("/v1/jobs", files=[("file", ("a.pdf", PDF))])
    operator.submit(ReadDocument(PDF))
    fleet.finish()
    assert sorted(call.url for call in fleet.callbacks) == ["https://operator.example/hook"] * 2
    assert clinic.get("/v1/deliveries").json() == thief.get("/v1/deliveries").json() == []


def test_a_tenant_has_so_many_webhooks_and_no_more(fleet: RealFleet, gateway: Gateway) -> None:
    fleet._postgres.execute(
        """INSERT INTO endpoints (id, url, events, secret, client, tenant)
           SELECT gen_random_uuid(), 'https://example.org', '{}', '"x"', 'me', 'clinic' FROM generate_series(1, 50)"""
    )
    refused = gateway.bearer("clinic").post("/v1/webhooks", json={"url": HOOK})
    assert code_of(refused) == (409, "webhook_limit")
    assert gateway.bearer("other").post("/v1/webhooks", json={"url": HOOK}).status_code == 201
    with (
        Client(gateway.url, api_key=gateway.key("clinic")[1]) as remote,
        pytest.raises(EndpointLimitError, match="The maximum of 50 endpoints"),
    ):
        remote.add_endpoint(HOOK)
    fleet._postgres.execute("DELETE FROM endpoints")


def test_jobs_of_a_tenant_take_turns_as_one(fleet: RealFleet, gateway: Gateway) -> None:
    for tenant in ("clinic", "clinic", "other"):
        gateway.bearer(tenant).post("/v1/jobs", files=[("file", ("a.pdf", PDF))])
    flows = [row["flow"] for row in fleet._postgres.execute("SELECT flow FROM jobs ORDER BY id").fetchall()]
    assert isinstance(flows[0], UUID)
    assert (flows[0] == flows[1], flows[0] == flows[2]) == (True, False)


def test_the_trail_says_which_key_read(owned: dict[str, str], fleet: RealFleet, gateway: Gateway) -> None:
    gateway.bearer("clinic", "ward-7").get(f"/v1/jobs/{owned['job_id']}/result")
    client: Client = fleet.client()
    assert [entry.actor for entry in client.audit(job=owned["job_id"])] == ["client:clinic/ward-7"]


def _all_of(clinic: Any, owned: dict[str, str]) -> list[Any]:
    """Return what a clinic has, as it sees it."""
    paths = (
        "/jobs",
        f"/jobs/{owned['job_id']}",
        f"/jobs/{owned['job_id']}/result",
        "/webhooks",
        "/deliveries",
    )
    return [clinic.get("/v1" + path).json() for path in paths]


def _everywhere(bearer: Any, besides: str = "") -> Iterator[Any]:
    """Yield the answer of every route."""
    nowhere = dict.fromkeys(("job_id", "webhook_id", "delivery_id", "batch"), str(uuid4()))
    for method, path in ROUTES:
        if path != besides:
            yield bearer.request(method, "/v1" + path.format(**nowhere))


async def test_a_limit_holds_among_requests_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(_key: object) -> AccessUsage:
        await asyncio.sleep(0)
        return AccessUsage(pages_of_day=0, pages_in_flight=0)  # nothing is written yet

    key = SimpleNamespace(lanes=tuple(Lane), pages_per_day=None, pages_in_flight=2)
    client = SimpleNamespace(connections=SimpleNamespace(access=SimpleNamespace(load=load)))
    bearer = identity.Bearer(cast("Any", key), cast("Any", client), looked_up=0.0, tokens=1.0)

    async def admitted() -> int:
        async with AsyncExitStack() as stack:
            entering = (stack.enter_async_context(bearer.admitted({Lane.NORMAL: 1})) for _ in range(8))
            return (await asyncio.gather(*entering, return_exceptions=True)).count(None)

    assert await admitted() == 2
    assert await admitted() == 0, "written, and not counted yet"
    monkeypatch.setattr(identity, "_COUNTED_S", 0)
    assert await admitted() == 2


def test_an_administrator_makes_and_revokes_keys_that_may_no_more_than_its_own(gateway: Gateway) -> None:
    own = gateway.bearer(lanes=(Lane.NORMAL, Lane.BULK), pages_per_day=100)
    made = own.post("/v1/keys", json={"name": "scanner", "scopes": ["submit"], "lanes": ["bulk"]})
    assert made.status_code == 201
    key = made.json()["key"]
    assert (key["tenant"], key["lanes"], key["pages_per_day"]) == ("clinic", ["bulk"], 100)
    fresh = gateway.showing(made.json()["secret"])
    assert fresh.get("/v1/key").json()["key"]["scopes"] == ["submit"]
    assert fresh.get("/v1/keys").json()["code"] == "scope_missing"
    for body, code in (
        ({"name": "x", "scopes": ["submit"], "lanes": ["urgent"]}, "lane_forbidden"),
        ({"name": "X Y", "scopes": ["submit"]}, "invalid_option"),
    ):
        assert own.post("/v1/keys", json=body).json()["code"] == code
    reader = gateway.bearer(name="reader", scopes=(Scope.READ, Scope.ADMIN))
    assert reader.post("/v1/keys", json={"name": "x", "scopes": ["submit"]}).json()["code"] == "scope_missing"

    listed = own.get("/v1/keys").text
    assert key["id"] in listed
    assert made.json()["secret"].split("_", 2)[2] not in listed
    other = gateway.bearer("south")
    assert key["id"] not in other.get("/v1/keys").text
    assert other.delete(f"/v1/keys/{key['id']}").status_code == 404
    assert own.delete(f"/v1/keys/{key['id']}").status_code == 204
    revoked = next(one["key"] for one in own.get("/v1/keys").json() if one["key"]["id"] == key["id"])
    assert revoked["revoked_at"] is not None


def test_usage_and_batches_are_those_of_the_tenant(fleet: RealFleet, gateway: Gateway) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    own, other = gateway.bearer("clinic"), gateway.bearer("south")
    for bearer in (own, other):
        form: dict[str, Any] = {
            "files": [("file", ("a.pdf", b"%PDF-1.7"))],
            "data": {"request": '{"batch": "night"}'},
        }
        assert bearer.post("/v1/jobs", **form).status_code == 201
    fleet.finish()
    fleet._postgres.execute("UPDATE parts SET verdict = 'review' WHERE stage = 'read'")
    for bearer in (own, other):
        usage = bearer.get("/v1/usage", params={"by": "kind"}).json()
        assert usage["total"]["jobs"] == 1
        (batch,) = bearer.get("/v1/batches").json()
        assert (batch["name"], batch["counts"]["states"], batch["needs_review"]) == (
            "night",
            {"succeeded": 1},
            2,
        )
        assert bearer.get("/v1/batches", params={"before": batch["id"]}).json() == []
