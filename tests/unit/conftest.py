"""What several tests want: limits and files of media, and the spans of a process."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from pecia_workers.media.pages import Limits


@pytest.fixture
def limits() -> "Limits":
    from pecia_schemas.settings import WorkerSettings  # noqa: PLC0415  few files want it, and it takes a second
    from pecia_workers.media.pages import Limits  # noqa: PLC0415  as above

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
def spans() -> "Iterator[InMemorySpanExporter]":
    """Keeps what is traced."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  few files want it
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
        InMemorySpanExporter,
    )

    from pecia_schemas import tracing  # noqa: PLC0415

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()
    provider.shutdown()
