"""A fleet whose model is on a server, through the server's absence."""

from typing import Any

import pytest
from pydantic import SecretStr

from chat_server import Behaviour, serving
from fixture_types import Draw, Eventually, RunFleet
from limits import WAIT_S
from pecia import ReadDocument
from pecia_schemas.states import JobState

pytestmark = pytest.mark.gate

KEY = "sesame"


def engine_of(fleet: Any) -> int | None:
    pid: int | None
    (pid,) = [service.pid for service in fleet.fleet.services() if service.name == "engine"]
    return pid


def test_pages_wait_for_an_absent_server(run_fleet: RunFleet, drawn: Draw, eventually: Eventually) -> None:
    behaviour = Behaviour(key=KEY, takes_s=0.2)
    with (
        serving(behaviour) as first,
        run_fleet(
            "served",
            engine="openai",
            engine_url=first.url,
            engine_api_key=SecretStr(KEY),
            engine_ready_timeout=2,
            decode_processes=1,
        ) as fleet,
    ):
        before = fleet.client.submit(ReadDocument(drawn("before")))
        assert before.result(timeout=WAIT_S).pages[0].text == behaviour.text
        engine = engine_of(fleet)
        first.kill()
        jobs = fleet.client.submit_many(ReadDocument(drawn(f"page {number}")) for number in range(4))
        eventually(lambda: engine_of(fleet) != engine, what="the worker's end")
        with serving(behaviour, first.server_port):
            jobs.wait(timeout=WAIT_S)

        assert {job.refresh().state for job in jobs} == {JobState.SUCCEEDED}
