"""The Celery message of a part is made of what the claim checked, and of nothing else."""

import json
from uuid import uuid4

import pytest
from pydantic import SecretStr

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage
from pecia_workers.app import FleetApp, queues_of, worker_argv
from pecia_workers.queue.lists import Claimed
from pecia_workers.queue.transport import envelope, task_name


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_has_a_task_without_arguments(stage: Stage) -> None:
    claimed = Claimed(part=str(uuid4()), stage=stage, lane=Lane.BULK, cost=9)

    message = envelope(claimed)

    assert message["headers"]["task"] == task_name(stage)
    assert task_name(stage) in FleetApp(WorkerSettings(redis_url=SecretStr("redis://localhost"))).tasks
    assert json.loads(message["body"])[:2] == [[], {}]
    assert (message["headers"]["id"], message["properties"]["delivery_tag"]) == (claimed.part, claimed.part)
    told = {"retries": 0, "x-lane": "bulk", "x-cost": 9, "x-deliveries": 1, "x-suspect": False}
    told |= {"argsrepr": "()", "kwargsrepr": "{}"}
    assert told.items() <= message["headers"].items()
    assert message["properties"]["delivery_info"]["routing_key"] == claimed.queue == f"{stage}.bulk"


@pytest.mark.parametrize(("deaths", "redelivered"), [(0, False), (1, True)])
def test_a_part_whose_worker_died_is_marked(deaths: int, redelivered: bool) -> None:
    claimed = Claimed(part=str(uuid4()), stage=Stage.READ, lane=Lane.URGENT, cost=1, deaths=deaths)
    message = envelope(claimed)
    assert message["headers"]["redelivered"] is redelivered
    assert message["properties"]["delivery_info"]["redelivered"] is redelivered
    assert message["headers"]["x-deliveries"] == deaths + 1


def test_a_worker_serves_the_lanes_of_its_stages_in_their_order() -> None:
    assert queues_of([Stage.READ, Stage.CAPTION])[:3] == ["read.urgent", "caption.urgent", "read.normal"]


def test_a_workers_arguments_name_its_queues_and_its_role() -> None:
    argv = worker_argv([Stage.INGEST], WorkerSettings(log_level="debug"))
    assert argv[0] == "worker"
    assert "--queues=ingest.urgent,ingest.normal,ingest.bulk" in argv
    assert any(argument.startswith("--hostname=ingest@") for argument in argv)
    assert "--loglevel=DEBUG" in argv
