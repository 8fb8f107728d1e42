"""What an application that traces sees of a submit, and what its jobs keep of it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from pecia import AsyncClient, Client, ClientSettings, IdempotencyConflictError, ReadDocument
from pecia_schemas import tracing
from pecia_schemas.installing import install_command
from tests.shared.collector import Collector, Told, application, collecting
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S
from tests.shared.snippets import blocks


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def tracer(collector: Collector) -> Iterator[Any]:
    with application(collector) as provider:
        tracing.enable(provider)
        yield provider.get_tracer("the application")
        tracing.disable()


@pytest.fixture
def settings(house: House) -> ClientSettings:
    return ClientSettings(tracing=True).with_stores(**house.urls)


@pytest.fixture
def kept(house: House) -> Callable[[], list[tuple[str, str] | None]]:
    """Trace and span in which the jobs were submitted, as they keep them, in the order of submission."""
    query = "SELECT substr(traceparent, 4, 32), substr(traceparent, 37, 16) FROM jobs ORDER BY id"
    return lambda: [(trace, span) if trace else None for trace, span in house.query(query)]


def tree(spans: list[Told], root: Told) -> dict[str, Any]:
    """Return the names below a span."""
    return {span.name: tree(spans, span) for span in spans if span.parent == root.id}


SUBMIT: dict[str, Any] = {"submit": {"store": {}, "accept": {}, "send": {}}}


def test_the_snippet_of_the_page_makes_a_submit_part_of_the_applications_trace(
    settings: ClientSettings,
    picture: Picture,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (snippet,) = blocks((Path(__file__).parents[2] / "docs" / "tracing.md").read_text(), "python")
    monkeypatch.chdir(tmp_path)
    Path("scan.png").write_bytes(picture())
    with application(collector) as provider, Client(settings=settings) as client:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        tracing.disable()
        tracing.enable()
        names = {"client": client, "ReadDocument": ReadDocument}
        exec(compile(snippet, "docs/tracing.md", "exec"), names)  # noqa: S102  our own documentation
        tracing.disable()

    (admission,) = collector.named("admission")
    assert tree(collector.spans, admission) == SUBMIT


async def test_so_it_is_with_an_asynchronous_client(
    settings: ClientSettings, picture: Picture, tracer: Any, collector: Collector, kept: Any
) -> None:
    async with AsyncClient(settings=settings) as client:
        with tracer.start_as_current_span("request"):
            job = await client.submit(ReadDocument(picture()))
        with tracer.start_as_current_span("batch"):
            await client.submit_many([ReadDocument(picture(shade=1))])

    (request,), (batch,) = collector.named("request"), collector.named("batch")
    first, second = collector.named("submit")
    assert tree(collector.spans, request) == SUBMIT
    assert (first.kind, first.attributes["pecia.job.id"]) == ("producer", str(job.id))
    assert tree(collector.spans, batch) == {"submit_many": {"accept": {}, "send": {}}}
    assert kept() == [first.place, second.place]


@pytest.mark.usefixtures("tracer")
def test_without_a_span_of_the_application_a_submit_begins_a_trace(
    settings: ClientSettings, picture: Picture, collector: Collector, kept: Any
) -> None:
    with Client(settings=settings) as client:
        client.submit(ReadDocument(picture()))
    (submit,) = collector.named("submit")
    assert submit.parent == ""
    assert kept() == [submit.place]


@pytest.mark.usefixtures("tracer")
def test_each_of_many_jobs_has_a_trace_of_its_own_that_is_linked_to_their_submit(
    settings: ClientSettings, picture: Picture, collector: Collector, kept: Any
) -> None:
    with Client(settings=settings) as client:
        jobs = client.submit_many([ReadDocument(picture(shade=shade)) for shade in range(3)])
    (many,), submits = collector.named("submit_many"), collector.named("submit")
    assert len({span.trace for span in [many, *submits]}) == 4
    assert [span.links for span in submits] == [(many.place,)] * 3
    assert [span.attributes["pecia.job.id"] for span in submits] == [str(job.id) for job in jobs]
    assert kept() == [span.place for span in submits]
    assert [list(tree(collector.spans, span)) for span in submits] == [["store"]] * 3


@pytest.mark.usefixtures("tracer")
def test_a_refused_submit_names_why(settings: ClientSettings, picture: Picture, collector: Collector) -> None:
    with Client(settings=settings) as client:
        client.submit(ReadDocument(picture()), idempotency_key="Hartwigsen")
        with pytest.raises(IdempotencyConflictError):
            client.submit(ReadDocument(picture(shade=1)), idempotency_key="Hartwigsen")
    _, refused = collector.named("submit")
    assert (refused.failed, refused.attributes["error.type"]) == (True, "IdempotencyConflictError")
    assert not any(b"Hartwigsen" in body for body in collector.bodies)


def test_a_job_that_is_not_sampled_keeps_nothing(
    settings: ClientSettings, picture: Picture, collector: Collector, kept: Any
) -> None:
    with application(collector, ParentBased(ALWAYS_OFF)) as provider, Client(settings=settings) as client:
        tracing.enable(provider)
        client.submit(ReadDocument(picture()))
        tracing.disable()
    assert kept() == [None]
    assert collector.spans == []


def test_nobody_traces_who_was_not_asked_to(client: Client, picture: Picture, kept: Any) -> None:
    client.submit(ReadDocument(picture()))
    assert kept() == [None]


# The SDK alone waits for half a minute; here for an hour.
ENDING = """
from opentelemetry.sdk._shared_internal import BatchProcessor
from pecia_schemas import tracing
from pecia_schemas.settings import ClientSettings
BatchProcessor.shutdown.__defaults__ = (3_600_000,)
with tracing.exported(ClientSettings(tracing=True), "ending"), tracing.first("request"):
    pass
"""


def test_a_process_ends_though_its_collector_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        own = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
        subprocess.run([sys.executable, "-c", ENDING], env=os.environ | own, check=True, timeout=WAIT_S)
        silent.settimeout(1)
        silent.accept()[0].close()  # it did try


WITHOUT = """
import sys

class Lacking:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
import pecia_workers.app, pecia_workers.worker.runtime, pecia_workers.upkeep.loop, pecia_workers.outgoing.webhooks
from pecia import AsyncClient, Client, ClientSettings, ConfigurationError
stores = dict(database_url="postgresql://nobody@nowhere/", redis_url="redis://nowhere", payload_url="/nowhere")
for kind in (Client, AsyncClient):
    kind(**stores)
    try:
        kind(**stores, settings=ClientSettings(tracing=True))
    except ConfigurationError as error:
        print(error)
"""


def test_opentelemetry_is_needed_by_nobody_who_does_not_trace() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [f"PECIA_TRACING needs OpenTelemetry: {install_command('otel')}"] * 2
