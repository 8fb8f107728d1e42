"""A real worker on a machine that its cloud takes away: what it cannot finish waits again at once."""

import os
from collections.abc import Iterator

import pytest
from redis import Redis

from fixture_types import Eventually
from forking import Program, Programs
from house import House
from limits import WAIT_S
from metadata_server import MetadataServer, metadata_server
from pecia import Client, DocumentType, ReadDocument

ON_DUTY = "SELECT 1 FROM workers WHERE capabilities IS NOT NULL"
PARTS = "SELECT state, strikes, deaths FROM parts"
_SETTINGS = {
    "PECIA_TERMINATION_NOTICE": "aws",
    "PECIA_DRAIN_TIMEOUT": "0.5",
    "PECIA_LEASE": "60",
    "PECIA_ENGINE": "simulated",
    "PECIA_DECODE_PROCESSES": "1",
}


class DoomedMachine:
    """Runs workers whose charts take fifteen seconds each, and whose lease is a minute."""

    def __init__(
        self, cloud: MetadataServer, house: House, stores: dict[str, str], programs: Programs
    ) -> None:
        self.cloud = cloud
        self.query = house.query
        self._programs = programs
        self._log = house.spool / "log"
        self._environment = os.environ | stores | _SETTINGS | {"PECIA_TERMINATION_SERVER": cloud.url}
        self._started: list[Program] = []

    def start(self, role: str) -> Program:
        command = ("-m", "pecia", "worker", role)
        process = self._programs.start(*command, environment=self._environment, log=self._log)
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        for process in self._started:
            process.end()


@pytest.fixture
def machine(house: House, stores: dict[str, str], programs: Programs) -> Iterator[DoomedMachine]:
    with metadata_server() as cloud:
        machine = DoomedMachine(cloud, house, stores, programs)
        yield machine
        machine.end()


def test_an_engine_worker_gives_back_what_it_cannot_finish_and_no_lease_is_waited_for(
    machine: DoomedMachine, client: Client, printed: bytes, redis_url: str, eventually: Eventually
) -> None:
    worker = machine.start("engine")
    eventually(lambda: machine.query(ON_DUTY), what="the worker")
    for _ in range(3):
        client.submit(ReadDocument(printed, document_type=DocumentType.CHART, cache=False))
    eventually(lambda: [state for state, *_ in machine.query(PARTS)] == ["running"] * 3)

    machine.cloud.going = True

    assert worker.wait(WAIT_S) == 0
    assert machine.query(PARTS) == [("queued", 0, 0)] * 3
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("read.normal") == 3
    assert machine.log.index("termination_notice") < machine.log.index("Warm shutdown")


def test_a_service_ends_when_it_is_told(machine: DoomedMachine, eventually: Eventually) -> None:
    service = machine.start("upkeep")
    eventually(lambda: machine.query("SELECT 1 FROM workers"), what="the service")
    machine.cloud.going = True
    assert service.wait(WAIT_S) == 0
    assert machine.query("SELECT 1 FROM workers WHERE stopped_at IS NULL") == []
