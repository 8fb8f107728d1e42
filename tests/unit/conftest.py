"""What several tests want: limits and files of media, and the spans of a process."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pecia_schemas import tracing
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.pages import Limits


@pytest.fixture
def limits() -> Limits:
    return Limits.of(WorkerSettings())


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes a file whose name is wrong for most, and must not be told."""
    numbers = count()

    def written(content: bytes) -> Path:
        path = tmp_path / f"letter {next(numbers)} of a patient.pdf"
        path.write_bytes(content)
        return path

    return written


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Keeps what is traced."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()
    provider.shutdown()
