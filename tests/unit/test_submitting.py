"""What a client submits: its way from a source to a worker's spool, and whether there is room for it in its lane."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pecia import InvalidSourceError, ReadDocument, SubmitManyError
from pecia.aio.connections import AsyncPublisher
from pecia.connections import Publisher
from pecia.errors import QueueFullError
from pecia.records import LaneLoad
from pecia.testing import FakeFleet
from pecia.waiting import Backlog
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane
from pecia_workers.media.decoder import Spool
from pecia_workers.media.pages import Limits
from pecia_workers.outgoing.sources import Arriving
from tests.shared.limits import WAIT_S


def submitted_on_a_loop(fleet: FakeFleet, task: ReadDocument) -> object:
    async def submit() -> object:
        async with fleet.async_client() as client:
            return await client.submit(task)

    return asyncio.run(submit())


@pytest.mark.parametrize("submit", [lambda fleet, task: fleet.client().submit(task), submitted_on_a_loop])
def test_a_pipe_is_read_whole(submit: Callable[[FakeFleet, ReadDocument], object], tmp_path: Path) -> None:
    pipe = tmp_path / "scanner"
    os.mkfifo(pipe)
    with FakeFleet() as fleet, ThreadPoolExecutor(1) as threads:
        writing = threads.submit(pipe.write_bytes, b"scan")
        submit(fleet, ReadDocument(pipe))
        assert writing.result(timeout=WAIT_S) == 4
        assert fleet.submitted[0].content == b"scan"


def test_a_file_that_was_closed_or_cannot_be_leaves_the_others_alone() -> None:
    closed = BytesIO(b"scan")
    closed.close()
    sources: list[Any] = [closed, Path("a\0b"), Path("a" * 400), b"another"]
    with FakeFleet() as fleet, pytest.raises(SubmitManyError) as refusal:
        fleet.client().submit_many(map(ReadDocument, sources))
    failures = refusal.value.failures
    assert {type(failure) for failure in failures.values()} == {InvalidSourceError}
    assert ["closed" in str(failures[0]), *("check the path" in str(failures[n]) for n in (1, 2))] == [
        True
    ] * 3
    assert len(refusal.value.accepted) == 1


CONTENT = b"%PDF-1.7 nothing else"
HOSTILE = ("..", "$(reboot)", "a;b|c&d", "-rf", "%2e%2e%2f", "\n", "\u202efdp.exe", "x" * 200, ".pecia", "~")


def kept(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_document_is_stored_under_the_hash_of_its_content_alone(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in" / f"{name}.pdf"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    reference = PayloadStore.open(str(tmp_path / "store")).put(source)
    assert kept(tmp_path / "store") == [Path("sha256", reference.sha256[:2], reference.sha256)]


@given(name=st.text(min_size=1, max_size=80))
def test_no_text_but_a_hash_names_a_payload(name: str) -> None:
    for text in (name, f"../{name}", "a" * 63 + name[:1], "a" * 64 + name, "A" * 64, "a" * 64 + "\n"):
        if len(text) == 64 and set(text) <= set("0123456789abcdef"):
            continue
        with pytest.raises(ValidationError):
            PayloadRef(sha256=text, size=1, media_type=None)


async def test_a_worker_opens_what_lies_inside_of_the_store_alone(tmp_path: Path) -> None:
    store = PayloadStore.open(str(tmp_path / "store"))
    reference = store.put(CONTENT)
    spool = Spool(store, tmp_path / "spool")
    async with spool.open(reference) as path:
        assert path.is_relative_to(tmp_path / "store")


async def test_a_spool_does_not_grow_with_the_number_of_small_documents(tmp_path: Path) -> None:
    store = PayloadStore.open(str(tmp_path))
    spool = Spool(store, tmp_path)
    references = [store.put(str(number).encode()) for number in range(1_050)]
    for reference in references:
        async with spool.open(reference) as path:
            assert path.exists()
    assert len(spool._copies) == 1_000


class Counting(BytesIO):
    writes = 0

    def write(self, content: Any, /) -> int:
        self.writes += 1
        return super().write(content)


async def test_a_server_that_sends_byte_by_byte_costs_no_write_for_each() -> None:
    file, document = Counting(), bytes(range(256)) * 1_000
    arriving = Arriving(file, Limits.of(WorkerSettings()))
    for position in range(len(document)):
        await arriving.write(document[position : position + 1])
    await arriving.arrived()
    assert file.read() == document
    assert file.writes == 4


def counted(waiting: int, *, ended: int = 0, limit: int = 100) -> Backlog:
    backlog = Backlog({Lane.BULK: limit})
    backlog.saw(Lane.BULK, LaneLoad(waiting=waiting, ended=ended), took=0)
    return backlog


def test_there_is_room_up_to_the_limit_of_which_the_client_counts_what_it_hands_over() -> None:
    assert isinstance(counted(100).refusal(Lane.BULK), QueueFullError)
    backlog = counted(90)
    backlog.add(Lane.BULK, 9)
    assert backlog.refusal(Lane.BULK) is None
    backlog.add(Lane.BULK, 1)
    assert backlog.refusal(Lane.BULK) is not None


def test_a_lane_without_a_limit_is_never_full_and_one_that_was_not_counted_yet_has_to_be() -> None:
    assert Backlog({Lane.BULK: 100}).is_stale(Lane.BULK)
    backlog = counted(100)
    assert not backlog.is_stale(Lane.BULK)
    backlog.saw(Lane.URGENT, LaneLoad(waiting=10**6, ended=0), took=0)
    assert backlog.limit(Lane.URGENT) is None
    assert backlog.refusal(Lane.URGENT) is None


@pytest.mark.parametrize(("ended", "seconds"), [(0, 10), (60, 10), (120, 5), (1, 60), (6_000, 1)], ids=str)
def test_a_client_may_come_again_after_a_tenth_of_the_limit(ended: int, seconds: float) -> None:
    refusal = counted(100, ended=ended).refusal(Lane.BULK)
    assert refusal is not None
    assert (refusal.lane, refusal.retry_after, refusal.retryable) == (Lane.BULK, seconds, True)


@pytest.mark.parametrize("options", [{"timeout": 60 * 60}, {"block": True, "timeout": 0}])
def test_without_block_or_a_timeout_there_is_no_wait(options: dict[str, Any]) -> None:
    with FakeFleet(held=True) as fleet:
        client = fleet.client(max_backlog={Lane.NORMAL: 1})
        client.submit(ReadDocument(b"scan"))
        with pytest.raises(QueueFullError):
            client.submit(ReadDocument(b"scan"), **options)


def test_hundreds_of_waits_leave_connections_to_redis() -> None:
    how: dict[str, Any] = {"connect_timeout": timedelta(seconds=1), "window": 1}
    blocking = Publisher(lambda: "redis://127.0.0.1:1", **how).redis.connection_pool
    beside = AsyncPublisher(lambda: "redis://127.0.0.1:1", **how).redis.connection_pool
    for _ in range(500):  # by the library's own limit the 101st raises
        blocking.make_connection()
        beside.get_available_connection()  # type: ignore[no-untyped-call]
