"""The trace of a job through a whole fleet, as a collector has it."""

import io
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from redis import Redis

from pecia import Client, ClientSettings, Job, ReadDocument
from pecia_schemas import tracing
from pecia_schemas.messages import queue_name
from pecia_schemas.results import Document
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import count_waiting
from tests.shared.chat_server import Behaviour, ChatServerDouble, serving
from tests.shared.collector import Collector, Told, application, collecting
from tests.shared.fixture_types import Draw, Make, RunFleet
from tests.shared.limits import WAIT_S, eventually

pytestmark = pytest.mark.gate

TEXT, FILE_NAME, METADATA, HOOK = "Quillfeather", "Hartwigsen", "Marigoldby", "Juniperstow"
FINISH, CALLBACK = ("pecia-engine", "finish"), ("pecia-webhooks", "callback")


@dataclass(frozen=True)
class Scene:
    """A fleet that traces, the server that its engine asks, and who collects the spans of both and of a client."""

    fleet: Any
    client: Client
    server: ChatServerDouble
    collector: Collector

    def read(self, page: bytes) -> Job[Document]:
        return self.client.submit(ReadDocument(page, cache=False))

    def until_asked(self, asked: int) -> None:
        eventually(lambda: len(self.server.pages) > asked)

    def trace(self, job: Job[Any], *last: tuple[str, str], pages: int = 1) -> list[Told]:
        """Return a job's spans, once these (service, name) are among them, and its pages' last attempts.

        An attempt is exported after all that it did; each process exports when it likes, whichever ended first.
        """

        def spans() -> list[Told]:
            submits = self.collector.named("submit")
            (trace,) = {span.trace for span in submits if span.attributes.get("pecia.job.id") == str(job.id)}
            found = self.collector.of(trace)
            attempts = named(found, "process read.normal")
            done = [one for one in attempts if one.attributes["pecia.outcome"] == "done"]
            exported = {(span.service, span.name) for span in found}
            return found if exported.issuperset(last) and len(done) == pages else []

        found: list[Told] = eventually(spans, what=f"the spans {last}")
        return found


@pytest.fixture(scope="module")
def scene(run_fleet: RunFleet) -> Iterator[Scene]:
    """The engine takes one page at a time."""
    own = {"tracing": True, "engine": "openai", "max_in_flight": 1, "retry_delay": timedelta(seconds=0.2)}
    with (
        collecting() as collector,
        serving(Behaviour(text=f"Seen by {TEXT}")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with run_fleet("traced", engine_url=server.url, **own) as fleet, application(collector) as provider:
            tracing.enable(provider)
            with Client(
                settings=ClientSettings(tracing=True).with_stores(
                    database_url=fleet.settings.database_url.get_secret_value(),
                    redis_url=fleet.settings.redis_url.get_secret_value(),
                    payload_url=fleet.settings.payload_url,
                )
            ) as client:
                yield Scene(fleet, client, server, collector)
            tracing.disable()


def below(spans: list[Told], parent: Told) -> set[str]:
    return {span.name for span in spans if span.parent == parent.id}


def named(spans: list[Told], name: str) -> list[Told]:
    return [span for span in spans if span.name == name]


def named_in(traceparent: str) -> tuple[str, str]:
    """The trace and the span that it names; that they are sampled is the last of its flags."""
    version, trace, span, flags = traceparent.split("-")
    assert version == "00"
    assert int(flags, 16) & 1
    return trace, span


def test_a_job_is_one_trace_from_the_application_to_the_receiver(
    scene: Scene, drawn: Draw, open_receiver: Make, tmp_path: Path
) -> None:
    receiver, document = open_receiver(), tmp_path / f"{FILE_NAME}.tiff"
    page = Image.open(io.BytesIO(drawn(TEXT)))
    page.save(document, save_all=True, append_images=[page])

    job = scene.client.submit(
        ReadDocument(document), webhook=f"{receiver.url}/{HOOK}", metadata={"ward": METADATA}
    )
    assert [one.text for one in job.result(timeout=WAIT_S).pages] == [f"Seen by {TEXT}"] * 2
    spans = scene.trace(job, ("pecia-ingest", "process ingest.normal"), FINISH, CALLBACK, pages=2)

    (submit,), (callback,) = named(spans, "submit"), named(spans, "callback")
    assert below(spans, submit) == {
        *("store", "accept", "send"),
        *("wait ingest.normal", "process ingest.normal", "wait read.normal", "process read.normal"),
        *("finish", "callback"),
    }
    (ingest,), requests = named(spans, "process ingest.normal"), named(spans, "chat tiny")
    assert below(spans, ingest) == {"claim", "fetch", "cut", "commit"}
    pages = named(spans, "process read.normal")
    assert [span.attributes["pecia.part.number"] for span in pages] == [1, 2]
    for one in pages:
        assert below(spans, one) == {"claim", "prepare", "admit", "chat tiny", "commit"}
    for request in requests:
        assert below(spans, request) == {"prefill", "decode"}
        assert request.attributes["gen_ai.usage.output_tokens"] > 0
    assert [span.service for span in (submit, ingest, *pages, callback)] == [
        *("application", "pecia-ingest", "pecia-engine", "pecia-engine", "pecia-webhooks")
    ]
    assert {span.kind for span in spans if span.name.startswith("process")} == {"consumer"}
    assert not any(span.failed for span in spans)

    asked = [headers["traceparent"] for headers in scene.server.headers if "traceparent" in headers]
    assert sorted(map(named_in, asked)) == sorted((one.trace, one.id) for one in requests)
    (notice,) = receiver.requests
    assert named_in(notice.headers["traceparent"]) == (callback.trace, callback.id)
    planted = (TEXT, FILE_NAME, METADATA, HOOK, receiver.url)
    assert not [word for word in planted for body in scene.collector.bodies if word.encode() in body]


def test_what_was_claimed_together_is_told_with_a_link_to_each_job(scene: Scene, drawn: Draw) -> None:
    trace = scene.trace(scene.read(drawn("linked")), FINISH)[0].trace
    (received,) = [span for span in scene.collector.named("receive") if trace in dict(span.links)]
    assert received.parent == ""
    assert received.attributes["messaging.batch.message_count"] == 1


def test_a_part_that_failed_and_is_tried_again_keeps_its_trace(scene: Scene, drawn: Draw) -> None:
    scene.server.behaviour.endings.append("abort")
    job = scene.read(drawn("again"))
    former, last = named(scene.trace(job, FINISH), "process read.normal")
    assert former.failed
    assert former.attributes["pecia.outcome"] == "retried"
    assert former.attributes["error.type"] == "engine_error"
    assert last.attributes["pecia.outcome"] == "done"
    assert last.attributes["pecia.attempt"] == 2


def test_a_part_whose_worker_was_killed_keeps_its_trace(scene: Scene, drawn: Draw) -> None:
    scene.server.behaviour.takes_s, asked = WAIT_S, len(scene.server.pages)
    job = scene.read(drawn("killed"))
    scene.until_asked(asked)
    os.kill(scene.fleet.pid("engine"), signal.SIGKILL)
    scene.server.behaviour.takes_s = 0
    (attempt,) = named(scene.trace(job, FINISH), "process read.normal")
    assert attempt.attributes["pecia.attempt"] > 1
    assert attempt.attributes["pecia.deaths"] >= 1


def test_a_part_that_redis_lost_keeps_its_trace(scene: Scene, drawn: Draw) -> None:
    scene.server.behaviour.takes_s, asked = WAIT_S, len(scene.server.pages)
    scene.read(drawn("in front"))
    scene.until_asked(asked)
    job = scene.read(drawn("lost"))
    with Redis.from_url(scene.fleet.settings.redis_url.get_secret_value()) as redis:
        waits = queue_name(Stage.READ, Lane.NORMAL)
        eventually(lambda: count_waiting(redis)[waits] == 1)
        redis.flushall()
    scene.server.behaviour.takes_s = 0

    spans = scene.trace(job, ("pecia-upkeep", "send"), FINISH)

    assert [span.service for span in named(spans, "send")].count("application") == 1
    assert named(spans, "process read.normal")[-1].attributes["pecia.outcome"] == "done"
