"""Sources that can be read once, or not at all any more."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from limits import WAIT_S
from pecia import InvalidSourceError, Job, ReadDocument, SubmitManyError
from pecia.testing import FakeFleet
from pecia_schemas.results import Document


def submitted(fleet: FakeFleet, task: ReadDocument) -> Job[Document]:
    return fleet.client().submit(task)


def submitted_on_a_loop(fleet: FakeFleet, task: ReadDocument) -> object:
    async def submit() -> object:
        async with fleet.async_client() as client:
            return await client.submit(task)

    return asyncio.run(submit())


@pytest.mark.parametrize("submit", [submitted, submitted_on_a_loop])
def test_a_pipe_is_read_whole(submit: Callable[[FakeFleet, ReadDocument], object], tmp_path: Path) -> None:
    pipe = tmp_path / "scanner"
    os.mkfifo(pipe)
    with FakeFleet() as fleet, ThreadPoolExecutor(1) as threads:
        writing = threads.submit(pipe.write_bytes, b"scan")
        submit(fleet, ReadDocument(pipe))
        assert writing.result(timeout=WAIT_S) == 4
        assert fleet.submitted[0].content == b"scan"


@pytest.mark.parametrize("name", ["a\0b", "a" * 400])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with FakeFleet() as fleet, pytest.raises(InvalidSourceError, match="check the path"):
        fleet.client().submit(ReadDocument(Path(name)))


def test_a_file_object_that_was_closed_leaves_the_others_alone() -> None:
    closed = BytesIO(b"scan")
    closed.close()
    with FakeFleet() as fleet:
        with pytest.raises(SubmitManyError) as refusal:
            fleet.client().submit_many([ReadDocument(closed), ReadDocument(b"another")])
        assert isinstance(refusal.value.failures[0], InvalidSourceError)
        assert "closed" in str(refusal.value.failures[0])
        assert len(refusal.value.accepted) == 1
