"""What spans say, and what they never say."""

import asyncio
import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pecia_schemas import tracing
from pecia_schemas.failures import Failure, FailureCode
from pecia_workers.observability.tracing import ended, processing
from pecia_workers.protocol.parts import ClaimedPart, Failed
from tests.shared.parts import claimed_part

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JOB = f"00-{TRACE}-{SPAN}-01"


def part(traceparent: str | None) -> ClaimedPart:
    return claimed_part(attempt=2, strikes=1, traceparent=traceparent)


def test_of_an_exception_only_its_name_is_told(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="Quillfeather"), tracing.under(JOB, "work"):
        raise ValueError("Quillfeather")
    (span,) = spans.get_finished_spans()
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}
    assert (span.status.description, span.events) == (None, ())


def test_a_wait_and_an_attempt_are_spans_below_the_jobs_and_tell_its_end(spans: InMemorySpanExporter) -> None:
    failed = Failed(Failure.of(FailureCode.DAMAGED, "on Quillfeather"))
    with processing(part(JOB), claimed_at=10**18):
        ended(part(JOB), failed, 1.0, committed=True)
    told = {span.name: span for span in spans.get_finished_spans()}
    assert set(told) == {"wait read.urgent", "claim", "process read.urgent"}
    for name in ("wait read.urgent", "process read.urgent"):
        parent = told[name].parent
        assert parent
        assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
    attributes = told["process read.urgent"].attributes or {}
    assert (attributes["pecia.outcome"], attributes["error.type"]) == ("failed", "damaged")
    assert (attributes["pecia.attempt"], attributes["messaging.destination.name"]) == (2, "read.urgent")
    assert "Quillfeather" not in str(attributes)

    with pytest.raises(asyncio.CancelledError), processing(part(JOB), claimed_at=10**18):
        raise asyncio.CancelledError
    assert (spans.get_finished_spans()[-1].attributes or {})["pecia.outcome"] == "given_back"


@pytest.mark.parametrize(
    "traceparent", [None, "", "Quillfeather", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"]
)
def test_a_part_of_an_untraced_job_has_no_span(spans: InMemorySpanExporter, traceparent: str | None) -> None:
    with processing(part(traceparent), claimed_at=10**18), tracing.span("commit"):
        assert tracing.headers() == {}
    assert spans.get_finished_spans() == ()


SCRIPT = """
import structlog
from opentelemetry.sdk.trace import TracerProvider
from pecia_schemas import tracing
from pecia_schemas.settings import WorkerSettings
from pecia_workers.observability.tracing import configure_logs

configure_logs(WorkerSettings(log_format="json"))
log = structlog.get_logger("ours")
tracing.enable(TracerProvider(shutdown_on_exit=False))
with tracing.under("{JOB}", "work") as span:
    log.info("inside", traceparent=span.traceparent)
log.info("outside")
"""


def test_a_line_of_the_log_bears_the_ids_of_its_span() -> None:
    script = SCRIPT.replace("{JOB}", JOB)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    inside, outside = map(json.loads, ran.stderr.splitlines())
    assert inside["trace_id"] == TRACE
    assert inside["traceparent"][3:52] == f"{inside['trace_id']}-{inside['span_id']}"
    assert not {"trace_id", "span_id"} & outside.keys()
