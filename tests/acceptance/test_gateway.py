"""The gateway of `pecia up --gateway` as a user has it: keys by the command, curl as the page has it, clients."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from pecia import AccessError, Client, GatewayUnavailableError, ReadDocument, Verdict
from tests.shared.browsers import tab
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Draw, RunFleet
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S
from tests.shared.npm_files import installed, tools
from tests.shared.pictures import encoded, note
from tests.shared.snippets import ROOT, blocks

pytestmark = pytest.mark.gate

TYPESCRIPT = Path(__file__).with_name("typescript")


@pytest.fixture(scope="module")
def fleet(run_fleet: RunFleet) -> Iterator[Any]:
    with run_fleet("gateway", gateway=True, gateway_port=free_port(), engine="simulated") as fleet:
        yield fleet


def made(fleet: Any, *words: str) -> dict[str, Any]:
    """Return the key that the command makes."""
    completed = run_pecia("access", "create", *words, "--json", env=fleet.environment)
    assert completed.returncode == 0, completed.stderr
    key: dict[str, Any] = json.loads(completed.stdout)
    return key


def test_a_client_over_http_reads_too(fleet: Any, drawn: Draw, tmp_path: Path) -> None:
    key = made(fleet, "intake", "--tenant", "clinic")
    scan = tmp_path / "scan.png"
    scan.write_bytes(drawn("Ward 7"))
    with Client(fleet.fleet.gateway, api_key=key["key"]) as client:
        job = client.submit(ReadDocument(scan), metadata={"ward": "7"})
        assert [page.number for page in job.pages(timeout=WAIT_S)] == [1]
        assert job.result(timeout=WAIT_S).pages[0].verdict is Verdict.OK
        assert client.job(job.id).metadata == {"ward": "7"}
    assert run_pecia("access", "revoke", key["id"], env=fleet.environment).returncode == 0
    with (
        Client(fleet.fleet.gateway, api_key="pecia_x_y") as client,
        pytest.raises(AccessError, match="key does not exist"),
    ):
        client.job(job.id)
    listed = run_pecia("access", "list", "--tenant", "clinic", env=fleet.environment).stdout
    assert (key["id"] in listed, "revoked" in listed, key["key"] in listed) == (True, True, False)
    as_json = run_pecia("access", "list", "--tenant", "clinic", "--json", env=fleet.environment).stdout
    taken = {one["id"]: one["taken"] for one in map(json.loads, as_json.splitlines())}
    assert taken[key["id"]] == {"pages_of_day": 1, "pages_in_flight": 0}
    usage = run_pecia("usage", "--by", "tenant", "--json", env=fleet.environment).stdout
    assert {one["name"]: one["pages"] for one in json.loads(usage)["groups"]}["clinic"] >= 1


def test_all_verbs_go_through_the_gateway(fleet: Any, drawn: Draw, tmp_path: Path) -> None:
    shown = made(fleet, "verbs", "--tenant", "clinic")["key"]
    env = {"PECIA_GATEWAY_URL": fleet.fleet.gateway, "PECIA_API_KEY": shown}
    scan = tmp_path / "scan.png"
    scan.write_bytes(drawn("Ward 8"))
    read = run_pecia("read", scan, "--wait", "--json", env=env)
    assert (read.returncode, json.loads(read.stdout)["state"]) == (0, "succeeded"), read.stderr
    job = json.loads(read.stdout)["job"]
    for written in (tmp_path / "scan.pdf", tmp_path / "scan.html"):
        form = "pdf" if written.suffix == ".pdf" else "facsimile"
        saved = run_pecia("result", job, "-o", written, "--format", form, "--quality", "20", env=env)
        assert saved.returncode == 0, saved.stderr
        assert written.read_bytes().startswith(b"%PDF" if form == "pdf" else b"<!DOCTYPE html>")
    exported = run_pecia(
        "export", "--state", "succeeded", "--format", "pdf", "--to", tmp_path / "all", env=env
    )
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "all" / "scan.pdf").read_bytes().startswith(b"%PDF")
    (listed,) = (
        json.loads(line) for line in run_pecia("list", "--json", "--limit", "1", env=env).stdout.splitlines()
    )
    assert listed["job"] == json.loads(read.stdout)["job"]


def test_the_pages_of_the_api_load_nothing_from_elsewhere_and_run_requests(
    fleet: Any, browser: Browser, drawn: Draw
) -> None:
    shown = made(fleet, "pages", "--tenant", "pages")["key"]
    loaded: list[str] = []
    with tab(browser) as page:
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(f"{fleet.fleet.gateway}/docs")
        page.get_by_role("button", name="Authorize").click()
        page.locator(".auth-container input").fill(shown)
        page.locator(".auth-container").get_by_role("button", name="Apply credentials").click()
        page.locator(".auth-container").get_by_role("button", name="Close").click()
        operation = page.locator("#operations-jobs-upload")
        operation.locator(".opblock-summary-control").click()
        operation.locator("input[type=file]").set_input_files(
            {"name": "scan.png", "mimeType": "image/png", "buffer": drawn("Ward 9")}
        )
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text("201")
    assert {url for url in loaded if not url.startswith((fleet.fleet.gateway, "data:"))} == set()


def test_what_the_page_shows_of_curl_works(fleet: Any, tmp_path: Path) -> None:
    shown = made(fleet, "curl", "--tenant", "curl")["key"]
    run_pecia("sample", tmp_path / "papers")
    with Client(fleet.fleet.gateway, api_key=shown) as client:
        job = client.submit(ReadDocument(b"%PDF-1.7"))
    env = os.environ | {"PECIA_GATEWAY_URL": fleet.fleet.gateway, "PECIA_API_KEY": shown, "JOB": str(job.id)}
    snippets = [one for one in blocks((ROOT / "docs/gateway.md").read_text(), "sh") if one.startswith("curl")]
    assert len(snippets) == 3
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    printed = ""
    for snippet in snippets:
        command = ["sh", "-e", "-c", snippet.replace("curl ", "curl -sSf ")]
        done = subprocess.run(command, check=False, **how)
        assert done.returncode == 0, (snippet, done.stdout, done.stderr)
        printed = done.stdout
    assert "event: end" in printed


def test_what_the_page_shows_of_the_openai_client_works(fleet: Any, tmp_path: Path) -> None:
    run_pecia("sample", tmp_path / "papers")
    shown = made(fleet, "openai", "--tenant", "openai")["key"]
    env = os.environ | {"PECIA_GATEWAY_URL": fleet.fleet.gateway, "PECIA_API_KEY": shown}
    (snippet,) = blocks((ROOT / "docs/openai-api.md").read_text(), "python")
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", snippet], check=False, **how)
    assert done.returncode == 0, done.stderr
    answered = json.loads(done.stdout.splitlines()[-1] or done.stdout.splitlines()[-2])
    assert answered["custom_id"] == "lab-17"
    assert answered["response"]["body"]["pecia"]["verdict"] == "ok"


def test_a_gateway_that_is_away_is_said_to_be() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}", api_key="x") as client,
        pytest.raises(GatewayUnavailableError),
    ):
        client.submit(ReadDocument(b"%PDF-1.7"))


@pytest.fixture
def program(fleet: Any, tmp_path: Path) -> Path:
    """The program `read.ts`, type-checked against the client that was generated from this gateway's description."""
    packages = installed(TYPESCRIPT)
    project = shutil.copytree(packages, tmp_path / "project", symlinks=True)
    description = httpx2.get(f"{fleet.fleet.gateway}/openapi.json", timeout=WAIT_S)
    (project / "openapi.json").write_bytes(description.content)
    _run(project, "node_modules/@hey-api/openapi-ts/bin/run.js", "-i", "openapi.json", "-o", "client")
    _run(project, "node_modules/typescript/bin/tsc")
    return project


def test_a_generated_client_submits_streams_pages_and_fetches_the_result(fleet: Any, program: Path) -> None:
    key = made(fleet, "typescript", "--tenant", "generated")["key"]
    scan = program / "scan.pdf"
    scan.write_bytes(encoded(note(), "PDF", save_all=True, append_images=[note(1)]))

    told = json.loads(_run(program, "out/read.js", fleet.fleet.gateway, key, str(scan)))

    with Client(fleet.fleet.gateway, api_key=key) as client:
        job = client.job(told["job_id"])
        assert job.metadata == {"ward": "7"}
        assert told["pages"] == [page.number for page in job.result().pages] == [1, 2]
        assert told["result"] == job.result().text


def _run(project: Path, program: str, *words: str) -> str:
    ran = subprocess.run(
        [tools()[0], program, *words],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
