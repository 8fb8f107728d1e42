"""OpenAI's own client, unchanged, before a gateway: files of requests, batches of them, and one page at a time."""

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from PIL import Image
from pydantic import SecretStr

from pecia import ReadDocument
from pecia.gateway.identity import TenantClient
from pecia_schemas.encryption import new_key
from pecia_schemas.failures import FailureCode
from pecia_workers.ledger.database import fetch
from pecia_workers.ledger.standing import UNENDED
from pecia_workers.local.process import wait_until
from tests.shared.gateways import Gateway, serving
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S
from tests.shared.pictures import encoded, note
from tests.shared.real_fleet import RealFleet

PAGE = encoded(note(), "PNG")
SMALL = encoded(Image.new("L", (8, 8)), "PNG")
SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}, "required": ["drug"]}


def asking(gateway: Gateway, key: str | None = None, **limits: Any) -> OpenAI:
    shown = gateway.key(**limits)[1] if key is None else key
    client = OpenAI(base_url=f"{gateway.url}/openai/v1", api_key=shown, max_retries=0, timeout=WAIT_S)
    return gateway.open_clients.enter_context(client)


def body(picture: bytes | str = PAGE, **more: Any) -> dict[str, Any]:
    url = (
        picture if isinstance(picture, str) else f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    )
    content = [
        {"type": "text", "text": "Transcribe this page."},
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
    ]
    message = {"role": "user", "content": content}
    return {"model": "some/model", "messages": [message], "max_completion_tokens": 1000, **more}


def line(name: str, **of_body: Any) -> bytes:
    request = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body(**of_body)}
    return json.dumps(request).encode() + b"\n"


def batch_of(client: OpenAI, *lines: bytes, **more: Any) -> Any:
    file = client.files.create(file=("night.jsonl", b"".join(lines)), purpose="batch")
    return batch_on(client, file.id, **more)


def counts(batch: Any) -> tuple[int, int, int]:
    told = batch.request_counts
    return told.total, told.completed, told.failed


def ended(fleet: RealFleet, client: OpenAI, batch: Any) -> Any:
    def is_over() -> bool:
        fleet.finish()
        return client.batches.retrieve(batch.id).status in {"completed", "cancelled", "expired", "failed"}

    assert wait_until(is_over, WAIT_S)
    return client.batches.retrieve(batch.id)


def written(client: OpenAI, file_id: str) -> dict[str, Any]:
    return {one["custom_id"]: one for one in map(json.loads, client.files.content(file_id).iter_lines())}


@pytest.fixture
def client(gateway: Gateway) -> OpenAI:
    return asking(gateway)


def test_a_batch_answers_each_line_and_says_which_it_could_not(client: OpenAI, fleet: RealFleet) -> None:
    fleet.answers(ReadDocument, "Aspirin 100 mg", fields={"drug": "Aspirin"})
    form = {"type": "json_schema", "json_schema": {"name": "drug", "schema": SCHEMA}}
    lines = (
        *(line(f"page-{number}") for number in range(70)),  # more than a step
        b'{"custom_id": "broken", "method": "POST"\n',
        line("no-picture", picture="nothing"),
        line("fields", response_format=form),
    )
    batch = batch_of(client, *lines, metadata={"ward": "7"})
    over = ended(fleet, client, batch)
    assert (over.status, over.metadata, over.input_file_id) == (
        "completed",
        {"ward": "7"},
        batch.input_file_id,
    )
    assert counts(over) == (73, 71, 2)

    answered = written(client, over.output_file_id)
    assert answered.keys() == {*(f"page-{number}" for number in range(70)), "fields"}
    completion = answered["page-0"]["response"]["body"]
    assert completion["choices"][0]["message"]["content"] == "Aspirin 100 mg"
    assert completion["pecia"]["verdict"] == "ok"
    assert json.loads(answered["fields"]["response"]["body"]["choices"][0]["message"]["content"]) == {
        "drug": "Aspirin"
    }

    refused = written(client, over.error_file_id)
    assert {name: one["error"]["code"] for name, one in refused.items()} == {
        None: "invalid_option",
        "no-picture": "invalid_source",
    }


def test_a_failed_page_is_in_the_error_file_with_its_code(client: OpenAI, fleet: RealFleet) -> None:
    fleet.fails(ReadDocument, FailureCode.DAMAGED)
    over = ended(fleet, client, batch_of(client, line("torn")))
    assert over.output_file_id is None
    assert written(client, over.error_file_id)["torn"]["error"]["code"] == "damaged"


def test_a_cancelled_batch_keeps_what_is_answered(client: OpenAI, fleet: RealFleet) -> None:
    fleet.answers(ReadDocument, "One page")
    batch: Any = batch_of(client, line("a"), line("b"))
    assert wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress", WAIT_S)
    assert fleet._run(fetch(fleet._database, UNENDED)) == []  # upkeep leaves it alone
    assert wait_until(fleet.step, WAIT_S)
    assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
    over = ended(fleet, client, batch)
    assert over.status == "cancelled"
    assert counts(over) == (2, 1, 1)
    assert len(written(client, over.output_file_id)) == 1
    (late,) = written(client, over.error_file_id).values()
    assert late["error"]["code"] == "batch_cancelled"


def test_nothing_moves_after_a_batch_is_cancelled(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cancelled, over = threading.Event(), threading.Event(), threading.Event()
    submit = TenantClient.submit_many

    async def submit_late(self: TenantClient, tasks: Any, **more: Any) -> Any:
        if self.connections.lines_of is None:
            return await submit(self, tasks, **more)
        begun.set()
        await asyncio.to_thread(cancelled.wait, WAIT_S)
        try:
            return await submit(self, tasks, **more)
        finally:
            over.set()

    monkeypatch.setattr(TenantClient, "submit_many", submit_late)
    batch: Any = batch_of(client, line("a") * 65)
    assert begun.wait(WAIT_S)
    client.batches.cancel(batch.id)
    before = client.batches.retrieve(batch.id)
    cancelled.set()
    assert over.wait(WAIT_S)
    assert (before.status, counts(before)) == ("cancelled", (65, 0, 0))
    assert client.batches.retrieve(batch.id) == before


def test_a_gateway_that_is_killed_while_it_submits_a_batch_loses_nothing(
    gateway: Gateway, fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.answers(ReadDocument, "One page")
    _, key = gateway.key()
    port = free_port()
    stores = {
        "PECIA_DATABASE_URL": fleet.database_url,
        "PECIA_REDIS_URL": fleet.redis_url,
        "PECIA_PAYLOAD_URL": fleet.payload_url,
        "PECIA_GATEWAY_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "pecia", "gateway"]
    with subprocess.Popen(command, env=os.environ | stores, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Gateway: ")
            with OpenAI(base_url=f"http://127.0.0.1:{port}/openai/v1", api_key=key, timeout=WAIT_S) as client:
                lines = (line(f"{number}", picture=SMALL) for number in range(150))
                batch: Any = batch_of(client, *lines)
                in_progress = lambda: client.batches.retrieve(batch.id).status == "in_progress"  # noqa: E731
                assert wait_until(in_progress, WAIT_S)
        finally:
            process.kill()
    monkeypatch.setattr("pecia.gateway.openai.intake._ABANDONED_S", 0)
    over = ended(fleet, asking(gateway, key), batch)
    assert (over.status, counts(over)) == ("completed", (150, 150, 0))


def test_input_files_of_vllm_work_unchanged(client: OpenAI, fleet: RealFleet) -> None:
    """As vLLM's documentation of `vllm run-batch` writes them, with its ways to name a picture."""
    fleet.answers(ReadDocument, "One page")
    url = f"data:image/png;base64,{base64.b64encode(PAGE).decode()}"
    pictures = [
        {"type": "image_url", "image_url": {"url": url}, "uuid": "first"},
        {"type": "image_url", "image_url": url},
        {"image_url": url},
    ]
    system = {"role": "system", "content": "You are a helpful assistant."}
    requests = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "meta-llama/Meta-Llama-3-8B-Instruct",
                "messages": [system, {"role": "user", "content": [{"type": "text", "text": "?"}, picture]}],
                "max_completion_tokens": 1000,
                "temperature": 0.0,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        }
        for number, picture in enumerate(pictures, start=1)
    ]
    asked = "\n\n".join(json.dumps(request) for request in requests)
    over = ended(fleet, client, batch_of(client, asked.encode()))
    assert counts(over) == (3, 3, 0)
    assert written(client, over.output_file_id).keys() == {"request-1", "request-2", "request-3"}


def test_files_expire_as_their_owner_said(
    client: OpenAI, fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("night.jsonl", line("a")), purpose="batch", expires_after=hour)
    assert file.expires_at == file.created_at + 3600
    batch = batch_on(client, file.id, output_expires_after=hour)
    over = ended(fleet, client, batch)
    answers = client.files.retrieve(over.output_file_id)
    assert answers.expires_at == over.completed_at + 3600

    fleet._postgres.execute("UPDATE jobs SET finished_at = finished_at - interval '61 minutes'")
    for gone in (file.id, over.output_file_id):
        with pytest.raises(openai.NotFoundError):
            client.files.content(gone)
    assert client.batches.retrieve(batch.id).status == "completed"
    monkeypatch.setattr("pecia.gateway.openai.intake._EXPIRY_S", 0)
    with serving(fleet.settings):
        left = "SELECT count(*) FROM jobs WHERE kind = 'openai.file' AND erased_at IS NULL"
        assert wait_until(lambda: fleet._postgres.execute(left).fetchone() == {"count": 0}, WAIT_S)


def test_a_file_is_encrypted_as_documents_are(fleet: RealFleet) -> None:
    lines = b'{"custom_id": "Kim Minji"}\n' * 2
    with serving(fleet.settings, encryption_keys=SecretStr(json.dumps({"first": new_key()}))) as gateway:
        client = asking(gateway)
        over = ended(fleet, client, batch_of(client, lines))
        assert counts(over) == (2, 0, 2)
        assert client.files.content(over.input_file_id).content == lines
        assert written(client, over.error_file_id).keys() == {"Kim Minji"}
    stored = [path.read_bytes() for path in Path(fleet.payload_url).rglob("*") if path.is_file()]
    assert stored
    assert not any(b"Kim" in content for content in stored)


def test_files_are_listed_read_and_deleted(client: OpenAI) -> None:
    lines = line("a") + line("b")
    file = client.files.create(file=("night.jsonl", lines), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("night.jsonl", len(lines), "batch")
    assert client.files.retrieve(file.id) == file
    assert [one.id for one in client.files.list()] == [file.id]
    assert client.files.content(file.id).content == lines
    assert client.files.delete(file.id).deleted
    assert not list(client.files.list())
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_batches_are_listed_and_hidden_from_jobs(gateway: Gateway, client: OpenAI, fleet: RealFleet) -> None:
    batches = [batch_of(client, line(name)) for name in "ab"]
    assert [one.id for one in client.batches.list(limit=1)] == [one.id for one in reversed(batches)]
    for batch in batches:
        ended(fleet, client, batch)
    jobs = gateway.bearer("clinic").get("/v1/jobs").json()["jobs"]
    assert sorted(job["label"] for job in jobs) == ["a", "b"]


def test_another_tenant_sees_nothing(gateway: Gateway, client: OpenAI, fleet: RealFleet) -> None:
    over = ended(fleet, client, batch_of(client, line("a")))
    other = asking(gateway, tenant="south")
    assert not list(other.batches.list())
    assert not list(other.files.list())
    for look in (
        lambda: other.batches.retrieve(over.id),
        lambda: other.batches.cancel(over.id),
        lambda: other.files.content(over.output_file_id),
        lambda: other.files.content(over.input_file_id),
        lambda: other.files.delete(over.input_file_id),
        lambda: batch_on(other, over.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            look()


def batch_on(client: OpenAI, file_id: str, **more: Any) -> Any:
    given: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | more
    return client.batches.create(input_file_id=file_id, **given)


@pytest.fixture
def at_work() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_one_page_is_a_chat_completion(client: OpenAI, fleet: RealFleet, at_work: ThreadPoolExecutor) -> None:
    fleet.answers(ReadDocument, "Aspirin 100 mg")
    coming = at_work.submit(
        partial(client.chat.completions.create, **body(extra_body={"pecia": {"language": "en"}}))
    )
    assert wait_until(fleet.step, WAIT_S)
    completion = coming.result(WAIT_S)
    assert completion.choices[0].message.content == "Aspirin 100 mg"
    assert completion.model_extra is not None
    assert completion.model_extra["pecia"]["needs_review"] is False


def test_a_page_that_cannot_be_read_is_an_error(
    client: OpenAI, fleet: RealFleet, at_work: ThreadPoolExecutor
) -> None:
    fleet.fails(ReadDocument, FailureCode.DAMAGED)
    coming = at_work.submit(partial(client.chat.completions.create, **body()))
    assert wait_until(fleet.step, WAIT_S)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        coming.result(WAIT_S)
    assert caught.value.code == "damaged"


def test_errors_are_known_to_the_client(gateway: Gateway, client: OpenAI, real_fleet: RealFleet) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="stream"):
        create(**body(stream=True))
    with pytest.raises(openai.BadRequestError, match="one image_url"):
        create(model="m", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.AuthenticationError):
        asking(gateway, "pecia_nothing").models.list()
    with pytest.raises(openai.PermissionDeniedError):
        asking(gateway, scopes=()).files.list()
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_nothing")
    with pytest.raises(openai.RateLimitError):
        asking(gateway, name="small", pages_per_day=1).batches.create(
            input_file_id=client.files.create(file=("two.jsonl", line("a") * 2), purpose="batch").id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    with serving(real_fleet.settings, gateway_max_bytes=1000) as narrow:
        with pytest.raises(openai.APIStatusError) as caught:
            asking(narrow).files.create(file=("large.jsonl", b"x" * 2000), purpose="batch")
        assert caught.value.status_code == 413
    assert [model.id for model in client.models.list()] == ["pecia"]
