"""SIGTERM in every phase of a part's way: the process ends by itself, nothing is lost and nothing done twice."""

import json
from pathlib import Path

import pytest

from pecia import Client, JobState, ReadDocument
from tests.shared.document_server import Answer, handing_out
from tests.shared.forking import Started
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.receivers import SECRET, Receiver, receiver

pytestmark = pytest.mark.gate

__all__ = ["receiver"]

TERMINATED_WORKER = Path(__file__).with_name("terminated_worker.py")
OUTGOING = {
    f"PECIA_{name}": value
    for kind in ("WEBHOOK", "SOURCE")
    for name, value in ((f"{kind}_ALLOW", json.dumps(["127.0.0.0/8"])), (f"{kind}_PORTS", "[]"))
}
SETTINGS = OUTGOING | {"PECIA_WEBHOOK_SECRET": SECRET, "PECIA_DRAIN_TIMEOUT": "5", "PECIA_LEASE": "60"}
PHASES = [
    ("ingest", "before", "queue.lists:Lists.claim"),
    ("ingest", "after", "ledger.ledger:Ledger.claim"),
    ("ingest", "before", "outgoing.sources:Web.fetch"),
    ("ingest", "after", "outgoing.sources:Web.fetch"),
    ("ingest", "after", "ledger.ledger:Ledger.take_in"),
    ("ingest", "before", "media.decoder:Decoder.inspect"),
    ("ingest", "before", "ledger.ledger:Ledger._commit_all"),
    ("ingest", "after", "ledger.ledger:Ledger._commit_all"),
    ("engine", "before", "worker.stages:Stages.start"),
    ("engine", "before", "queue.lists:Lists.claim"),
    ("engine", "after", "queue.lists:Lists.claim"),
    ("engine", "before", "ledger.ledger:Ledger._claim_all"),
    ("engine", "after", "ledger.ledger:Ledger._claim_all"),
    ("engine", "before", "media.decoder:Decoder.page"),
    ("engine", "after", "media.decoder:Decoder.page"),
    ("engine", "before", "engines.simulated:InstantEngine.generate"),
    ("engine", "after", "engines.simulated:InstantEngine.generate"),
    ("engine", "before", "ledger.ledger:Ledger._commit_all"),
    ("engine", "after", "ledger.ledger:Ledger._commit_all"),
    ("engine", "before", "queue.transport:Keeper.finish"),
    ("engine", "after", "queue.transport:Keeper.finish"),
    ("webhooks", "before", "ledger.outbox:claim_deliveries"),
    ("webhooks", "after", "ledger.outbox:claim_deliveries"),
    ("webhooks", "before", "outgoing.webhooks:Sender.post"),
    ("webhooks", "after", "outgoing.webhooks:Sender.post"),
    ("webhooks", "before", "ledger.outbox:record_outcome"),
    ("webhooks", "after", "ledger.outbox:record_outcome"),
    ("upkeep", "before", "upkeep.loop:relay"),
    ("upkeep", "after", "upkeep.loop:relay"),
    ("upkeep", "before", "upkeep.loop:expire"),
    ("upkeep", "after", "upkeep.loop:expire"),
]


@pytest.mark.parametrize(("role", "moment", "place"), PHASES, ids=" ".join)
def test_a_process_that_is_terminated_anywhere_loses_nothing_and_repeats_nothing(  # noqa: PLR0917  fixtures
    role: str,
    moment: str,
    place: str,
    started: Started,
    client: Client,
    house: House,
    receiver: Receiver,
    printed: bytes,
) -> None:
    with handing_out() as server:
        job = client.submit(ReadDocument(server.plan("/scan.png", Answer(printed))), webhook=receiver.url)
        for other in ("ingest", "engine", "webhooks"):  # what comes before it
            if other == role:
                break
            started.worker(other, **SETTINGS)
        terminated = started.start(
            str(TERMINATED_WORKER),
            "worker",
            role,
            TERMINATED_AT=f"{moment} pecia_workers.{place}",
            **SETTINGS,
        )

        assert terminated.wait(WAIT_S) == 0, started.log(terminated)

        log = started.log(terminated)
        assert f"terminated {moment}" in log
        assert "Traceback" not in log
        for service in ("ingest", "engine", "webhooks"):
            started.worker(service, **SETTINGS)
        assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED
        eventually(lambda: receiver.taken, what="the callback")
        assert len(server.asked) <= 2
    assert house.query("SELECT stage, state, strikes, deaths FROM parts ORDER BY stage") == [
        ("ingest", "done", 0, 0),
        ("read", "done", 0, 0),
    ]
    assert house.query("SELECT count(*) FROM results") == [(1,)]
    assert house.query("SELECT count(*) FROM job_events WHERE state = 'done'") == [(2,)]
    assert len(receiver.taken) == 1
    stopped = "SELECT stopped_at IS NOT NULL FROM workers WHERE pid = %s"
    assert house.query(stopped, terminated.pid) in ([], [(True,)])
