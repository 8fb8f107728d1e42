"""Logs of the fleet: ids, codes and costs, never text of a document; for people or, as JSON, for machines."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import structlog
from structlog.typing import EventDict

from pecia_schemas import tracing
from pecia_schemas.settings import WorkerSettings


def _with_trace(_logger: Any, _method: str, line: EventDict) -> EventDict:
    """Add the ids of the span under way, if there is one."""
    line.update(tracing.ids())
    return line


_SHARED = (
    structlog.contextvars.merge_contextvars,
    _with_trace,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def about_part(job_id: UUID, part: UUID, attempt: int) -> AbstractContextManager[None]:
    """Have every line carry these, of this task and of the threads and tasks that it starts, ours or a library's."""
    return structlog.contextvars.bound_contextvars(job=str(job_id), part=str(part), attempt=attempt)


def configure_logs(settings: WorkerSettings) -> None:
    """Send our logs and those of every library to stderr, one line each, in one format."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if settings.log_format == "text":
        # rich's traceback shows locals: pages and passwords
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=(*_SHARED, structlog.stdlib.ExtraAdder(allow=("part",))),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.captureWarnings(True)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.log_level == "info":  # that a part has arrived is Flower's to show: a line each is many
        logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    wrap = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, wrap],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
