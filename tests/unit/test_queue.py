"""The Celery message of a part is made of what the claim checked; one URL of Redis serves our scripts and kombu."""

import json
from uuid import uuid4

import pytest
from kombu.connection import Connection
from pydantic import SecretStr

from pecia_schemas.messages import PartMessage
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage
from pecia_workers.app import FleetApp, queues_of, worker_argv
from pecia_workers.queue import transport
from pecia_workers.queue.lists import celery_settings
from pecia_workers.queue.transport import envelope, task_name


@pytest.mark.parametrize("deaths", [0, 1])
@pytest.mark.parametrize("stage", Stage)
def test_every_stage_has_a_task_without_arguments_that_tells_of_deaths(stage: Stage, deaths: int) -> None:
    claimed = PartMessage(part=uuid4(), flow=uuid4(), stage=stage, lane=Lane.BULK, cost=9, deaths=deaths)

    message = envelope(claimed)

    assert message["headers"]["task"] == task_name(stage)
    assert task_name(stage) in FleetApp(WorkerSettings(redis_url=SecretStr("redis://localhost"))).tasks
    assert json.loads(message["body"])[:2] == [[], {}]
    assert message["headers"]["id"] == message["properties"]["delivery_tag"] == str(claimed.part)
    told = {"retries": 0, "x-lane": "bulk", "x-cost": 9, "x-deliveries": deaths + 1}
    told |= {"argsrepr": "()", "kwargsrepr": "{}", "redelivered": deaths > 0}
    assert told.items() <= message["headers"].items()
    about = message["properties"]["delivery_info"]
    assert about["routing_key"] == f"{stage}.bulk"
    assert about["redelivered"] is (deaths > 0)


def test_a_worker_serves_the_lanes_of_its_stages_in_their_order() -> None:
    assert queues_of([Stage.READ, Stage.CAPTION])[:3] == ["read.urgent", "caption.urgent", "read.normal"]


def test_a_workers_arguments_name_its_queues_and_its_role() -> None:
    argv = worker_argv([Stage.INGEST], WorkerSettings(log_level="debug"))
    assert argv[0] == "worker"
    assert "--queues=ingest.urgent,ingest.normal,ingest.bulk" in argv
    assert any(argument.startswith("--hostname=ingest@") for argument in argv)
    assert "--loglevel=DEBUG" in argv


def _connection(url: str) -> Connection:
    transport.install()
    settings = celery_settings(url)
    return Connection(settings["broker_url"], ssl=settings["broker_use_ssl"])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("host", "name"), [("redis.example", "redis.example"), ("[fd00::7]", "fd00::7")])
def test_a_tcp_url_keeps_account_password_and_database(host: str, name: str) -> None:
    connection = _connection(f"redis://fleet:p%40ss%2Fword@{host}:6380/3")
    assert (connection.hostname, connection.port, connection.virtual_host) == (name, 6380, "3")
    assert (connection.userid, connection.password) == ("fleet", "p@ss/word")


def test_a_unix_socket_becomes_kombus_form_and_tls_verifies_unless_the_url_says_otherwise() -> None:
    socket = celery_settings("unix:///run/redis.sock?db=2")["broker_url"]
    assert socket == "redis+socket:///run/redis.sock?virtual_host=2"
    assert celery_settings("rediss://redis.example/0")["broker_use_ssl"] == {"ssl_cert_reqs": "required"}
    trusting = celery_settings("rediss://redis.example/0?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem")
    assert trusting["broker_use_ssl"] == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/etc/ca.pem"}


def test_every_redis_scheme_gets_our_transport() -> None:
    for url in ("redis://localhost/0", "rediss://localhost/0", "unix:///run/redis.sock"):
        assert isinstance(_connection(url).transport, transport.Transport)
