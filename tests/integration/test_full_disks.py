"""Disks without room: no document and no try is lost, nothing half written passes for whole, and work goes on."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pecia import Client, ReadDocument
from pecia.errors import PayloadStoreUnavailableError
from tests.shared.document_server import Answer, handing_out
from tests.shared.forking import Started
from tests.shared.house import House
from tests.shared.limits import eventually

_MEGABYTES = 4
PART = "SELECT state, attempt, strikes, deaths, worker FROM parts WHERE stage = 'ingest'"


@dataclass(frozen=True)
class Disk:
    """A file system of some megabytes."""

    path: Path

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def empty(self) -> None:
        self._filler.unlink()

    def files(self) -> list[Path]:
        return [path for path in self.path.rglob("*") if path.is_file() and path != self._filler]

    @property
    def _filler(self) -> Path:
        return self.path / "filler"


@pytest.fixture
def disk(short_path: Path) -> Iterator[Disk]:
    if os.geteuid():
        pytest.skip("a file system of its own takes root")
    options = f"size={_MEGABYTES}m,mode=0711"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(short_path)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    yield Disk(short_path)
    subprocess.run(["umount", "--lazy", str(short_path)], check=True)


def test_a_submit_into_a_full_store_says_so_and_leaves_nothing(
    disk: Disk, house: House, printed: bytes
) -> None:
    stores = house.urls | {"payload_url": str(disk.path / "payloads")}
    with Client(*stores.values()) as client:
        disk.fill()
        with pytest.raises(PayloadStoreUnavailableError, match="free space") as caught:
            client.submit(ReadDocument(printed))
        assert caught.value.retryable
        assert disk.files() == []
        assert house.query("SELECT 1 FROM jobs") == []
        disk.empty()
        assert client.submit(ReadDocument(printed)).created


@pytest.mark.parametrize("full", ["PECIA_SPOOL_DIR", "PECIA_PAYLOAD_URL"])
def test_a_document_waits_for_room_without_a_strike(  # noqa: PLR0917  fixtures
    disk: Disk, started: Started, client: Client, house: House, printed: bytes, full: str
) -> None:
    settings = {full: str(disk.path), "PECIA_SOURCE_ALLOW": '["127.0.0.0/8"]', "PECIA_SOURCE_PORTS": "[]"}
    worker = started.worker("ingest", **settings)
    eventually(lambda: house.query("SELECT 1 FROM workers"), what="the worker")
    before = disk.files()
    disk.fill()
    with handing_out() as server:
        client.submit(ReadDocument(server.plan("/scan.png", Answer(printed))))
        eventually(lambda: started.log(worker).count("storage_unavailable") > 1, what="two tries")

        ((state, attempt, strikes, deaths, _),) = house.query(PART)
        assert state in {"queued", "running"}
        assert (attempt > 1, strikes, deaths) == (True, 0, 0)
        eventually(lambda: disk.files() == before, what="the end of a try")
        disk.empty()
        eventually(lambda: house.query(PART)[0][0] == "done", what="the document")

    log = started.log(worker)
    assert "Traceback" not in log
    assert "thrown out" not in log
    assert house.query("SELECT 1 FROM parts WHERE stage = 'read'") == [(1,)]
