"""Batches of requests, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from pecia.gateway.identity import Bearer, Reader, Submitter, bearers_of
from pecia.gateway.openai.files import (
    ANSWERED,
    FILE_ID,
    UNANSWERED,
    Expiry,
    Limit,
    meant,
    missing,
    page,
    result_body,
    seconds,
    wrong,
)
from pecia.gateway.openai.intake import Intake, batch_name, settle
from pecia.gateway.openai.requests import COMPLETIONS
from pecia.gateway.openai.statements import Held
from pecia.records import Counts, Listing
from pecia.request import Submission
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import RequestBatch

router = APIRouter()

_BATCH_ID: Final = re.compile(r"batch_([0-9a-f]{32})")
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


class NewBatch(BaseModel):
    """A batch to create."""

    model_config = ConfigDict(hide_input_in_errors=True)

    input_file_id: str
    endpoint: Literal["/v1/chat/completions"]
    completion_window: str = "24h"
    output_expires_after: Expiry | None = None
    metadata: dict[str, str] | None = Field(default=None)
    priority: Lane = Lane.BULK
    """Lane of the batch; an extension of OpenAI's API."""


@router.post("/batches")
async def create_batch(bearer: Submitter, body: NewBatch, request: Request) -> dict[str, Any]:
    """Answer the requests of a file. Their jobs are created after this answer, by any gateway process."""
    window = _WINDOW.fullmatch(body.completion_window)
    if window is None:
        raise wrong("invalid_option", "Write completion_window as in 24h, with m, h or d.")
    held = await bearer.client.connections.requests.file(meant(FILE_ID, body.input_file_id, "file"))
    if held is None or body.input_file_id.endswith(("-output", "-errors")):
        raise missing("file")
    lines = int(held.task["lines"])
    async with bearer.admitted({body.priority: lines}):
        original = await bearer.client.connections.store.original(held.id)
        opened = await bearer.client.connections.store.open_batch(None)
        task = RequestBatch(
            original.payload,
            lines=lines,
            file=body.input_file_id,
            window=body.completion_window,
            kept_s=body.output_expires_after.seconds if body.output_expires_after else None,
        )
        (job,) = await bearer.client.submit_many(
            [Submission(task)],
            batch=str(opened.id),
            priority=body.priority,
            metadata=body.metadata,
            expires=timedelta(**{_UNITS[window[2]]: int(window[1])}),
        )
    intake: Intake = request.app.state.intake
    intake.take(job.id)
    return await _batch_body(bearer, opened.id, request)


@router.get("/batches")
async def list_batches(
    bearer: Reader, request: Request, after: str | None = None, limit: Limit = 20
) -> dict[str, Any]:
    """List batches, newest first."""
    before = None
    if after:
        last = await bearer.client.connections.requests.batch(meant(_BATCH_ID, after, "batch"))
        before = last.id if last else None
    held = await bearer.client.connections.requests.batches(before=before, size=limit + 1)
    bodies = [await _batch_body(bearer, one.view.batch, request) for one in held if one.view.batch]
    return page(bodies, limit)


@router.get("/batches/{batch_id}", summary="Look at batch")
async def look_at_openai_batch(bearer: Reader, batch_id: str, request: Request) -> dict[str, Any]:
    """Get the state of a batch."""
    return await _batch_body(bearer, meant(_BATCH_ID, batch_id, "batch"), request)


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(bearer: Submitter, batch_id: str, request: Request) -> dict[str, Any]:
    """Cancel a batch now. Finished answers are kept."""
    batch = meant(_BATCH_ID, batch_id, "batch")
    held = await bearer.client.connections.requests.batch(batch)
    if held is None:
        raise missing("batch")
    await bearer.client.connections.requests.end(held.id, JobState.CANCELLED)
    intake: Intake = request.app.state.intake
    intake.take(held.id)
    return await _batch_body(bearer, batch, request)


async def _batch_body(bearer: Bearer, batch: UUID, request: Request) -> dict[str, Any]:
    requests = bearer.client.connections.requests
    held = await requests.batch(batch)
    if held is None:
        raise missing("batch")
    if held.is_submitted and not held.view.state.is_terminal:
        await settle(bearers_of(request), held)
        held = await requests.batch(batch) or held
    counts: Counts = await bearer.client.connections.store.counts(Listing(batch=batch))
    return _of_batch(held, counts.states)


def _of_batch(held: Held, states: Mapping[JobState, int]) -> dict[str, Any]:
    view, task = held.view, held.task
    status = _status(held, states)
    answered = sum(states.get(state, 0) for state in ANSWERED)
    failed = task["refused"] + sum(states.get(state, 0) for state in UNANSWERED)
    ended = seconds(view.finished_at)
    has_errors = failed or view.state is not JobState.SUCCEEDED
    over = view.state.is_terminal and not _unfinished(states)
    name: Callable[[str], str] = lambda kind: result_body(held, kind)["id"]  # noqa: E731
    return {
        "id": batch_name(held),
        "object": "batch",
        "endpoint": COMPLETIONS,
        "errors": None,
        "input_file_id": task["file"],
        "completion_window": task["window"],
        "status": status,
        "output_file_id": name("-output") if over and answered else None,
        "error_file_id": name("-errors") if over and has_errors else None,
        "created_at": seconds(view.submitted_at),
        "in_progress_at": seconds(view.started_at),
        "expires_at": seconds(held.expires_at),
        "finalizing_at": ended if status == "completed" else None,
        **{f"{name}_at": ended if status == name else None for name in ("completed", "failed", "expired")},
        "cancelling_at": ended if view.state is JobState.CANCELLED else None,
        "cancelled_at": ended if status == "cancelled" else None,
        "request_counts": {"total": task["lines"], "completed": answered, "failed": failed},
        "metadata": dict(view.metadata) or None,
    }


def _unfinished(states: Mapping[JobState, int]) -> bool:
    return any(states.get(state) for state in (JobState.QUEUED, JobState.RUNNING))


def _status(held: Held, states: Mapping[JobState, int]) -> str:
    if held.view.state.is_terminal and _unfinished(states):
        return "cancelling" if held.view.state is JobState.CANCELLED else "finalizing"
    match held.view.state:
        case JobState.QUEUED:
            return "validating"
        case JobState.RUNNING:
            return "in_progress"
        case JobState.SUCCEEDED:
            return "expired" if states.get(JobState.EXPIRED) else "completed"
        case state:
            return str(state)
