"""What KEDA asks Postgres, by the queries of `compose/kubernetes` and with the role of the page about it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pecia import Client, Lane, ReadDocument
from tests.shared.fixture_types import Picture
from tests.shared.manifests import rendered
from tests.shared.snippets import blocks

pytestmark = pytest.mark.gate

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def queries(target: str) -> list[str]:
    """Return the queries that scale a Deployment, in their order."""
    found = [
        one["spec"]
        for overlay in ("cpu", "gpu")
        for one in rendered(overlay)
        if one["kind"] == "ScaledObject"
    ]
    spec = next(spec for spec in found if spec["scaleTargetRef"]["name"] == target)
    return [trigger["metadata"]["query"] for trigger in spec["triggers"]]


@pytest.fixture
def owner(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def scaler(database_url: str, owner: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Postgres as KEDA's role sees it."""
    (statements,) = blocks(PAGE.read_text(), "sql")
    owner.execute(statements.encode())
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET ROLE scaler")
        yield connection
    owner.execute("DROP OWNED BY scaler")
    owner.execute("DROP ROLE scaler")


@pytest.fixture
def ask(scaler: psycopg.Connection[Any]) -> Callable[[str], float]:
    def asked(query: str) -> float:
        ((number,),) = scaler.execute(query.encode()).fetchall()
        return float(number)

    return asked


def test_depth_is_what_waits_and_what_runs_and_not_what_has_time(
    client: Client, picture: Picture, ask: Callable[[str], float], owner: psycopg.Connection[Any]
) -> None:
    jobs = [client.submit(ReadDocument(picture(shade=shade)), priority=Lane.BULK) for shade in range(3)]
    client.submit(ReadDocument(picture(shade=9)), not_before=datetime.now(UTC) + timedelta(hours=1))
    client.submit(ReadDocument(b"%PDF-1.7 to be cut"))
    owner.execute("UPDATE parts SET state = 'running', worker = 'w' WHERE job_id = %s", (jobs[0].id,))

    for engine in ("engine", "engine-gpu"):
        assert ask(queries(engine)[0]) == 3
    (ingest,) = queries("ingest")
    assert ask(ingest) == 1
    owner.execute("DELETE FROM parts WHERE stage = 'read'")
    owner.execute("UPDATE parts SET run_at = now() - interval '1 hour'")
    assert [ask(query) for query in queries("engine")] == [0, 0], "what is to be cut needs no engine"


@pytest.mark.parametrize(
    "case", [(Lane.URGENT, 60, 2), (Lane.NORMAL, 1800, 2), (Lane.NORMAL, 60, 0.07), (Lane.BULK, 86_400, 0)]
)
def test_age_is_how_many_times_as_long_as_it_should_the_oldest_part_of_a_lane_has_waited(
    client: Client,
    picture: Picture,
    ask: Callable[[str], float],
    owner: psycopg.Connection[Any],
    case: tuple[Lane, int, float],
) -> None:
    lane, waited_s, times = case
    _, age = queries("engine")
    assert ask(age) == 0
    client.submit(ReadDocument(picture()), priority=lane)
    owner.execute("UPDATE parts SET run_at = now() - %s", (timedelta(seconds=waited_s),))
    assert ask(age) == pytest.approx(times, rel=0.05, abs=0.01)
    assert queries("engine-gpu")[1] == age


def test_the_role_sees_nothing_of_a_document(scaler: psycopg.Connection[Any]) -> None:
    for column in ("failure", "worker", "job_id", "*"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            scaler.execute(f"SELECT {column} FROM parts".encode())  # noqa: S608  names of our own
    for table in ("jobs", "results", "job_events", "deliveries"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            scaler.execute(f"SELECT 1 FROM {table}".encode())  # noqa: S608
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        scaler.execute("UPDATE parts SET state = 'queued'")


def test_no_query_looks_at_what_is_over(client: Client, owner: psycopg.Connection[Any]) -> None:
    job = client.submit(ReadDocument(b"%PDF-1.7 to be cut"))
    owner.execute(
        "INSERT INTO parts (id, job_id, stage, ordinal, lane, state, cost)"
        " SELECT gen_random_uuid(), %s, 'read', n, 'normal', 'done', 1 FROM generate_series(1, 20000) AS n",
        (job.id,),
    )
    owner.execute("VACUUM ANALYZE parts")
    for query in (query for target in ("ingest", "engine") for query in queries(target)):
        plan = "\n".join(line for (line,) in owner.execute(b"EXPLAIN " + query.encode()))
        assert "Seq Scan on parts" not in plan
