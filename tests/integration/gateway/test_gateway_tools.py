"""Tools for language models, called by the SDK's own client: over HTTP at the gateway, and over standard streams."""

import asyncio
import base64
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from pecia import ReadDocument
from pecia.accounts import Scope
from tests.shared.contract_fleets import gateway, real_fleet
from tests.shared.gateways import Gateway
from tests.shared.limits import WAIT_S
from tests.shared.real_fleet import RealFleet

__all__ = ["gateway", "real_fleet"]

PNG = b"\x89PNG\r\n\x1a\n"
Calls = Callable[[Client], Coroutine[Any, Any, None]]


def over_http(gateway: Gateway, key: str, calls: Calls) -> None:
    async def run() -> None:
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http,
            Client(streamable_http_client(f"{gateway.url}/mcp", http_client=http)) as client,
        ):
            await calls(client)

    asyncio.run(run())


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    return content.text


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    assert result.structured_content is not None
    content: dict[str, Any] = result.structured_content
    return content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text(result).removeprefix(f"Error executing tool {tool}: ")


def test_a_document_is_submitted_followed_and_searched_over_http(
    real_fleet: RealFleet, gateway: Gateway
) -> None:
    real_fleet.empty()
    real_fleet.answers(ReadDocument, pages=["Amoxicillin 500 mg", "Metformin"], fields={"dose": "500 mg"})
    _, key = gateway.key()
    _, other = gateway.key("practice")
    seen: list[str] = []

    async def calls(client: Client) -> None:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {"submit", "status", "pages", "fields", "search"}
        assert "path" not in listed["submit"].input_schema["properties"]
        content = base64.b64encode(PNG).decode()
        schema = {"type": "object", "properties": {"dose": {"type": "string"}}}
        about = {"name": "scan.png", "batch": "ward-7", "lane": "urgent", "fields": schema}
        job = await answer(client, "submit", content=content, **about)
        assert (job["state"], job["label"], job["lane"]) == ("queued", "scan.png", "urgent")
        assert (await answer(client, "pages", job=job["id"]))["pages"] == []
        real_fleet.finish()
        seen.append(job["id"])
        state = await answer(client, "status", job=job["id"], wait=5)
        assert (state["state"], state["progress"]["done"]) == ("succeeded", 2)
        assert (await answer(client, "status", batch="ward-7"))["states"] == {"succeeded": 1}
        pages = await answer(client, "pages", job=job["id"], pages="2", form="markdown")
        assert [(page["number"], page["text"]) for page in pages["pages"]] == [(2, "Metformin")]
        found = await answer(client, "search", batch="ward-7", text="amoxicillin")
        assert [(one["page"], one["document"]) for one in found["matches"]] == [(1, "scan.png")]
        assert (found["documents_searched"], found["complete"]) == (1, True)
        fields = await answer(client, "fields", job=job["id"], pages="1")
        assert [page["fields"] for page in fields["pages"]] == [{"dose": "500 mg"}]
        assert (await refusal(client, "submit")).startswith("invalid_source: Give exactly one")
        assert (await refusal(client, "submit", content="no base64")).startswith("invalid_source: ")
        assert (await refusal(client, "pages", job=job["id"], pages="x")).startswith("invalid_option: ")

    async def calls_of_another(client: Client) -> None:
        for tool in ("status", "pages", "fields"):
            assert (await refusal(client, tool, job=seen[0])).startswith("job_not_found: ")
        assert (await refusal(client, "search", job=seen[0], text="a")).startswith("job_not_found: ")
        assert (await refusal(client, "search", batch="ward-7", text="a")).startswith("batch_not_found: ")
        assert (await refusal(client, "status", batch="ward-7")).startswith("batch_not_found: ")

    over_http(gateway, key, calls)
    over_http(gateway, other, calls_of_another)


def test_a_key_may_by_tools_what_it_may_otherwise(real_fleet: RealFleet, gateway: Gateway) -> None:
    real_fleet.empty()
    _, reads = gateway.key(scopes=(Scope.READ,))
    _, submits = gateway.key(scopes=(Scope.SUBMIT,), lanes=("bulk",))
    content = base64.b64encode(PNG).decode()

    async def reader(client: Client) -> None:
        assert (await refusal(client, "submit", content=content)).startswith("scope_missing: ")

    async def submitter(client: Client) -> None:
        assert (await refusal(client, "status", batch="x")).startswith("scope_missing: ")
        assert (await refusal(client, "submit", content=content)).startswith("lane_forbidden: ")
        assert (await answer(client, "submit", content=content, lane="bulk"))["created"]

    over_http(gateway, reads, reader)
    over_http(gateway, submits, submitter)
    for key in (None, "pecia_x_y"):
        refused = gateway.showing(key).post("/mcp", json={})
        assert (refused.status_code, refused.json()["code"]) == (401, "no_key")


def test_long_pages_come_in_several_answers(real_fleet: RealFleet, gateway: Gateway) -> None:
    real_fleet.empty()
    real_fleet.answers(ReadDocument, pages=["a" * 50_000, "b" * 30_000, "c" * 30_000])
    _, key = gateway.key()

    async def calls(client: Client) -> None:
        job = (await answer(client, "submit", content=base64.b64encode(PNG).decode()))["id"]
        real_fleet.finish()
        first = await answer(client, "pages", job=job)
        assert ([page["number"] for page in first["pages"]], first["next"]) == ([1], "2-")
        assert (first["pages"][0]["cut"], len(first["pages"][0]["text"])) == (True, 40_000)
        second = await answer(client, "pages", job=job, pages="2-")
        assert ([page["number"] for page in second["pages"]], second["next"]) == ([2], "3-")

    over_http(gateway, key, calls)


@pytest.mark.gate
def test_files_of_its_folder_are_submitted_over_standard_streams(
    real_fleet: RealFleet, tmp_path: Path
) -> None:
    real_fleet.empty()
    folder = tmp_path / "scans"
    folder.mkdir()
    (folder / "scan.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    stores = {
        "PECIA_DATABASE_URL": real_fleet.database_url,
        "PECIA_REDIS_URL": real_fleet.redis_url,
        "PECIA_PAYLOAD_URL": real_fleet.payload_url,
    }
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "pecia", "mcp", "--folder", str(folder)],
        env={**os.environ, **stores},
    )

    async def run() -> None:
        async with Client(stdio_client(server)) as client:
            job = await answer(client, "submit", path="scan.png")
            assert job["label"] == "scan.png"
            for outside in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "none.png"):
                assert (await refusal(client, "submit", path=outside)).startswith("invalid_source: ")
            real_fleet.finish()
            found = await answer(client, "pages", job=job["id"])
            assert [page["number"] for page in found["pages"]] == [1]

    asyncio.run(run())
    assert [job.label for job in real_fleet.client().jobs()] == ["scan.png"]
