"""What a key may send, hold open and have written at a time: judged before a body is read, and freed when it ends."""

import asyncio
import hashlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from pecia import Client, GatewayUnavailableError, QueueFullError, ReadDocument
from pecia.aio.job import AsyncJob
from pecia.gateway import bounds
from pecia.gateway.bounds import SharedCounts
from pecia.remote.calls import error_of
from pecia_workers.local.process import wait_until
from tests.shared.gateways import Gateway, serving
from tests.shared.limits import WAIT_S
from tests.shared.real_fleet import RealFleet

FORM: dict[str, Any] = {"files": [("file", ("a.pdf", b"%PDF-1.7"))]}
PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n'
MEGABYTE = 1024**2


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@contextmanager
def upload(gateway: Gateway, bearer: Any, size: int, sent: bytes = PART) -> Iterator[socket.socket]:
    """Begin a form of so many bytes, and send the first of them."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(
            f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer.headers['authorization']}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {size}\r\n\r\n".encode()
            + sent
        )
        yield connection


def answer_to(connection: socket.socket) -> tuple[int, str]:
    """Return status and code, once the server has closed the connection."""
    received = b""
    while fresh := connection.recv(65536):
        received += fresh
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


def taken_in(gateway: Gateway) -> int:
    size: int = gateway.app.state.bearers.spool._bytes
    return size


def spooled() -> int:
    """Return the bytes of deleted files that this process, the gateway's, has open."""
    size = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            link = descriptor.readlink()
            if str(link).endswith("(deleted)") and "memfd" not in str(link):
                size += descriptor.stat().st_size
        except OSError:
            continue
    return size


def test_nothing_of_a_body_is_read_without_a_key(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
    for key in (None, f"pecia_{uuid4().hex}_secret"):
        bearer = gateway.showing(key)
        bearer.headers.setdefault("authorization", "")
        with upload(gateway, bearer, 100 * MEGABYTE) as connection:
            assert answer_to(connection) == (401, "no_key")


def test_the_limits_of_a_key_are_judged_before_its_documents_come(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
    bearer = gateway.bearer("limited", pages_in_flight=1)
    assert bearer.post("/v1/jobs", **FORM).status_code == 201
    with upload(gateway, bearer, 100 * MEGABYTE) as connection:
        assert answer_to(connection) == (429, "pages_in_flight")
    reader = gateway.bearer("reader", scopes=())
    with upload(gateway, reader, 100 * MEGABYTE) as connection:
        assert answer_to(connection) == (403, "scope_missing")
    with upload(gateway, bearer, 1000 * MEGABYTE) as connection:
        assert answer_to(connection) == (413, "too_large")


def test_a_client_learns_why_its_document_was_not_read(gateway: Gateway) -> None:
    _, key = gateway.key("limited", pages_in_flight=1)
    with Client(gateway.url, api_key=key) as client:
        client.submit(ReadDocument(b"%PDF-1.7"))
        with pytest.raises(QueueFullError, match="pages in flight") as refused:
            client.submit(ReadDocument(b"%PDF-1.7" + bytes(20 * MEGABYTE)))
    assert refused.value.retry_after == 5


def test_a_body_that_stalled_may_be_sent_again() -> None:
    assert isinstance(error_of({"code": "too_slow", "detail": "It stalled."}, 408), GatewayUnavailableError)


def test_an_upload_that_stalls_frees_its_disk(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    before, small = spooled(), (PART + bytes(30_000) + b"\r\n") * 100  # which take memory if each is a file
    with upload(gateway, gateway.bearer(), 100 * MEGABYTE, small) as connection:
        assert wait_until(lambda: spooled() - before > 2 * MEGABYTE, WAIT_S)
        monkeypatch.setattr(bounds, "IDLE_S", 0.1)
        monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
        connection.sendall(bytes(1000))  # its next silence is shorter
        assert answer_to(connection) == (408, "too_slow")
    assert wait_until(lambda: taken_in(gateway) == 0, WAIT_S)
    assert spooled() <= before


def test_documents_of_a_form_are_stored_as_they_came(fleet: RealFleet, gateway: Gateway) -> None:
    documents = [
        b"%PDF-1.7 " + bytes([number]) * size for number, size in enumerate((0, 1, 70_000, 3_000_000, 9))
    ]
    form = [("file", (f"{number}.pdf", document)) for number, document in enumerate(documents)]
    jobs = gateway.bearer().post("/v1/jobs", files=form).json()["jobs"]
    stored = fleet._postgres.execute("SELECT id::text, payload FROM jobs").fetchall()
    names = {row["id"]: row["payload"] for row in stored}
    for job, document in zip(jobs, documents, strict=True):
        assert hashlib.sha256(document).hexdigest() in names[job["id"]]


def test_the_bytes_that_a_key_sends_at_a_time_are_bounded_and_those_of_all(
    fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_LINGER_S", 0.1)
    sizes = {"gateway_max_bytes": MEGABYTE, "gateway_upload_bytes": 0x180000, "gateway_spool_bytes": 0x280000}
    with serving(fleet.settings, **sizes) as small, ExitStack() as begun:
        first, second, third = small.bearer("first"), small.bearer("second"), small.bearer("third")
        size = MEGABYTE * 15 // 16
        for bearer in (first, second):
            begun.enter_context(upload(small, bearer, size, PART + bytes(size - 1000)))
        assert wait_until(lambda: taken_in(small) > 2 * size - 3000, WAIT_S)
        with upload(small, first, size) as connection:
            assert answer_to(connection) == (429, "uploads")
        with upload(small, third, size) as connection:
            assert answer_to(connection) == (503, "busy")
        begun.close()
        assert wait_until(lambda: taken_in(small) == 0, WAIT_S)
        assert third.post("/v1/jobs", **FORM).status_code == 201


def test_an_upload_that_is_broken_off_is_no_fault(gateway: Gateway) -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign, assignment]
    logging.getLogger("uvicorn.error").addHandler(handler)
    try:
        with upload(gateway, gateway.bearer(), 100 * MEGABYTE, PART + bytes(2 * MEGABYTE)):
            assert wait_until(lambda: taken_in(gateway) > MEGABYTE, WAIT_S)
        assert wait_until(lambda: taken_in(gateway) == 0, WAIT_S)
        assert gateway.bearer().get("/v1/key").status_code == 200  # the loop has gone on since
    finally:
        logging.getLogger("uvicorn.error").removeHandler(handler)
    assert not said


def test_waits_count_as_streams(fleet: RealFleet) -> None:
    with serving(fleet.settings, gateway_streams=1) as narrow:
        bearer = narrow.bearer()
        (job,) = bearer.post("/v1/jobs", **FORM).json()["jobs"]
        path = f"/v1/jobs/{job['id']}"
        with bearer.stream("GET", f"{path}/events/stream"):
            for waiting in (path, f"{path}/result"):
                refused = bearer.get(waiting, params={"wait": 60})
                assert (*code_of(refused), refused.headers["retry-after"]) == (429, "streams", "5")
            assert bearer.get(path).status_code == 200
            assert narrow.bearer().get(path, params={"wait": 0.1}).status_code == 409, (
                "another key has its own"
            )
            fleet.finish()
        # The stream counts until the gateway has seen that it is over.
        assert wait_until(
            lambda: bearer.get(path, params={"wait": 60}).json().get("state") == "succeeded", WAIT_S
        )


def test_all_waits_of_a_process_hear_of_their_jobs_by_one_connection(fleet: RealFleet) -> None:
    settings = fleet.settings.model_copy(update={"poll_interval": timedelta(hours=1)})
    before = len(fleet._redis.client_list(_type="pubsub"))
    with serving(settings) as patient, ThreadPoolExecutor(20) as beside:
        bearer = patient.bearer()
        jobs = [bearer.post("/v1/jobs", **FORM).json()["jobs"][0]["id"] for _ in range(4)]
        waits = [
            beside.submit(bearer.get, f"/v1/jobs/{job}", params={"wait": 60})
            for job in jobs
            for _ in range(5)
        ]
        subscription = patient.app.state.bearers.connections._subscription
        assert wait_until(
            lambda: len(subscription._confirmed) == 4 and sum(map(len, subscription._waits.values())) == 20,
            WAIT_S,
        )
        assert len(fleet._redis.client_list(_type="pubsub")) <= before + 2, "one for jobs, one for counts"
        for job in jobs:
            bearer.post(f"/v1/jobs/{job}/cancel")
        assert {wait.result(WAIT_S).json()["state"] for wait in waits} == {"cancelled"}
        assert wait_until(lambda: not subscription._waits, WAIT_S)


def test_few_results_with_pictures_are_drawn_at_a_time(
    fleet: RealFleet, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, at_once = threading.Event(), []

    async def save(job: AsyncJob[Any], path: Path, *_: Any, **__: Any) -> Path:
        at_once.append(job.id)
        await asyncio.to_thread(going.wait, WAIT_S)
        await asyncio.to_thread(path.write_bytes, b"%PDF-1.7")
        return path

    monkeypatch.setattr(AsyncJob, "save", save)
    fleet.answers(ReadDocument, text="one")
    bearers = [gateway.bearer(name) for name in ("first", "second", "third")]
    paths = [
        f"/v1/jobs/{bearer.post('/v1/jobs', **FORM).json()['jobs'][0]['id']}/result" for bearer in bearers
    ]
    fleet.finish()
    with ThreadPoolExecutor(18) as beside:
        drawing = [
            beside.submit(bearer.get, path, params={"format": "pdf"})
            for bearer, path in zip(bearers, paths, strict=True)
            for _ in range(6)
        ]
        try:
            assert wait_until(
                lambda: sum(answer.done() for answer in drawing) == 6 and len(at_once) == 2, WAIT_S
            )
            assert len(set(at_once)) == 2, "one of each key"
            refused = [answer.result() for answer in drawing if answer.done()]
            assert bearers[0].post("/v1/jobs", **FORM).status_code == 201
        finally:
            going.set()
        answers = [answer.result(WAIT_S) for answer in drawing]
    assert [code_of(answer) for answer in refused] == [(429, "results")] * 6
    assert all("retry-after" in answer.headers for answer in refused)
    assert [answer.status_code for answer in answers].count(200) == 12


def test_ranges_of_pages_are_skipped_as_ranges(fleet: RealFleet, gateway: Gateway) -> None:
    fleet.answers(ReadDocument, pages=["one", "two", "three", "four"])
    bearer = gateway.bearer()
    (job,) = bearer.post("/v1/jobs", **FORM).json()["jobs"]
    fleet.finish()

    def numbers(skip: str) -> list[int]:
        answer = bearer.get(f"/v1/jobs/{job['id']}/pages", params={"skip": skip})
        return [part["ordinal"] + 1 for part in answer.json()["parts"]]

    assert numbers("1,3") == [2, 4]
    assert numbers("2-999999") == [1]
    assert numbers("1-1000000") == []


def test_the_processes_of_a_gateway_count_waits_together(fleet: RealFleet) -> None:
    with (
        serving(fleet.settings, gateway_streams=1) as one,
        serving(fleet.settings, gateway_streams=1) as other,
    ):
        key, shown = one.key()
        here, there = one.showing(shown), other.showing(shown)
        (job,) = here.post("/v1/jobs", **FORM).json()["jobs"]
        path = f"/v1/jobs/{job['id']}"
        with here.stream("GET", f"{path}/events/stream"):
            shared = other.app.state.bearers.shared
            assert wait_until(lambda: shared.elsewhere(key.id).waits == 1, WAIT_S)
            assert code_of(there.get(path, params={"wait": 60})) == (429, "streams")
            fleet.finish()
        assert wait_until(lambda: shared.elsewhere(key.id).waits == 0, WAIT_S)
        assert there.get(f"{path}/events/stream").status_code == 200


def test_the_processes_of_a_gateway_share_the_rate_of_a_key(fleet: RealFleet) -> None:
    with (
        serving(fleet.settings, gateway_rate=0.01) as one,
        serving(fleet.settings, gateway_rate=0.01) as other,
    ):
        key, shown = one.key()
        assert one.showing(shown).get("/v1/key").status_code == 200
        refused = other.showing(shown).get("/v1/key")
        assert (*code_of(refused), int(refused.headers["retry-after"]) >= 1) == (429, "rate", True)
        assert other.bearer(name="another").get("/v1/key").status_code == 200
    names = [name.decode() for name in fleet._redis.scan_iter("pecia:gateway*")]
    assert any(str(key.id) in name for name in names)
    assert not any(shown.split("_", 2)[2] in name for name in names)


def test_without_redis_each_process_holds_the_rate_by_itself(fleet: RealFleet, tmp_path: Path) -> None:
    away = fleet.settings.with_stores(
        database_url=fleet.database_url, redis_url=f"unix://{tmp_path}/none", payload_url=fleet.payload_url
    )
    with serving(away, gateway_rate=0.01) as gateway:
        bearer = gateway.bearer()
        assert bearer.get("/v1/key").status_code == 200
        assert code_of(bearer.get("/v1/key")) == (429, "rate")


async def test_what_is_no_count_is_not_heard() -> None:
    shared = SharedCounts(cast("Any", None), dict)
    for data in ("", "[]", '{"process": 1, "counts": 2}', '{"process": "a", "counts": {"k": ["x"]}}'):
        shared._take(data)
    assert shared._heard == {}
