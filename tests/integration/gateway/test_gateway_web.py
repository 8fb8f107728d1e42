"""The web page's sign-in: the cookie opens what the key opens, for that page alone."""

import socket
from uuid import UUID

import httpx2
import pytest

from pecia import Client, ReadDocument
from pecia.accounts import Scope
from pecia.gateway.identity import COOKIE
from tests.shared.command import run_pecia
from tests.shared.gateways import Gateway


def signed_in(
    gateway: Gateway, tenant: str = "clinic", scopes: tuple[Scope, ...] = tuple(Scope)
) -> httpx2.Client:
    _, shown = gateway.key(tenant, scopes=scopes)
    browser = gateway.showing(None)
    answer = browser.post("/session", json={"key": shown})
    assert answer.status_code == 204
    said = answer.headers["set-cookie"].lower()
    assert all(word in said for word in (COOKIE, "httponly", "samesite=strict", "path=/"))
    return browser


def test_the_page_runs_nothing_but_its_own(gateway: Gateway) -> None:
    for path, kind in (("/", "text/html"), ("/web.js", "text/javascript"), ("/web.css", "text/css")):
        answer = gateway.showing(None).get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_key_that_does_not_open_leaves_no_cookie(gateway: Gateway) -> None:
    browser = gateway.showing(None)
    answer = browser.post("/session", json={"key": "pecia_x_y"})
    assert (answer.status_code, answer.json()["code"]) == (401, "no_key")
    assert "set-cookie" not in answer.headers
    assert browser.get("/session").status_code == 205
    for body in ("", "{}", '{"key": 1}'):
        refused = browser.post("/session", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 422
    assert browser.post("/session", data={"key": "k"}).status_code == 415


def test_who_signs_out_is_out(gateway: Gateway) -> None:
    browser = signed_in(gateway)
    assert browser.get("/session").status_code == 204
    assert browser.get("/v1/key").json()["key"]["tenant"] == "clinic"
    assert browser.delete("/session").status_code == 204
    assert browser.get("/v1/key").status_code == 401


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null"])
def test_a_page_elsewhere_changes_nothing(gateway: Gateway, origin: str | None) -> None:
    browser = signed_in(gateway)
    headers = {} if origin is None else {"Origin": origin}
    answer = browser.post("/v1/batches", json={"name": "night"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_page")
    own = browser.post("/v1/batches", json={"name": "night"}, headers={"Origin": gateway.url})
    assert own.status_code == 201


def test_the_desk_is_the_tenants_own(gateway: Gateway) -> None:
    with Client(gateway.url, api_key=gateway.key("clinic")[1]) as client:
        job: UUID = client.submit(ReadDocument(b"%PDF-1.7 ward 7")).id
    owner, other = signed_in(gateway), signed_in(gateway, "thief")
    own = signed_in(gateway, "thief", (Scope.READ,))
    assert owner.get(f"/desk/{job}/api/pages").json() == []
    for path in (f"/desk/{job}/api/pages", f"/desk/{job}/api/pages/{job}/1", f"/desk/{job}/pictures/{job}/1"):
        assert other.get(path).status_code == 404
        assert own.get(path).json()["code"] == "scope_missing"
        assert gateway.showing(None).get(path).status_code == 401
    body = {"revision": 0, "accepted": [], "checked": True}
    place = f"/desk/{job}/api/pages/{job}/1"
    assert other.post(place, json=body, headers={"Origin": gateway.url}).status_code == 404


def test_a_gateway_without_a_free_port_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        stores = {
            "PECIA_DATABASE_URL": "postgresql://h/d",
            "PECIA_REDIS_URL": "redis://h",
            "PECIA_PAYLOAD_URL": "p",
        }
        ran = run_pecia("gateway", env=stores | {"PECIA_GATEWAY_PORT": port})
    assert ran.returncode == 4
    assert ran.stderr.endswith(
        f"port {port}: Address already in use: choose another by PECIA_GATEWAY_PORT.\n"
    )
