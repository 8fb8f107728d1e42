"""Chat completions: one page at a time, in the form of OpenAI's API."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request

from pecia.errors import JobExpiredError, JobTimeoutError
from pecia.gateway.identity import Anyone, Submitter, bearers_of, body_of
from pecia.gateway.openai import answers
from pecia.gateway.openai.requests import parse_chat
from pecia.gateway.problems import ProblemError
from pecia_schemas.states import Lane

router = APIRouter()

_LONGEST_S: Final = 600.0
"""Time to wait for a page, the same as the default timeout of OpenAI's clients."""
_BODY: Final = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
_MODEL: Final = {"id": "pecia", "object": "model", "created": 0, "owned_by": "pecia"}


@router.post("/chat/completions", openapi_extra={"requestBody": _BODY})
async def complete_chat(
    bearer: Submitter, request: Request, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, Any]:
    """Read one page, and answer once it is read."""
    await bearer.check_load()
    bearers = bearers_of(request)
    async with bearers.spool.upload(bearer.limits, body_of(request)):
        chat = parse_chat(await request.body())
        task, lane = chat.task(), Lane(chat.pecia.get("priority", Lane.NORMAL))
        await bearer.admit(lane, 1)
        try:
            async with bearers.submitting:
                job = await bearer.client.submit(
                    task,
                    priority=lane,
                    idempotency_key=idempotency_key,
                    expires=timedelta(seconds=_LONGEST_S),
                )
        finally:
            bearer.settled(1)
    del chat, task
    try:
        with bearer.limits.wait(bearers.settings.gateway_streams):
            document = await job.result(timeout=_LONGEST_S)
    except (JobTimeoutError, JobExpiredError):
        raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "timeout", "The page was not read in time.") from None
    return answers.completion(job._view, document)  # noqa: SLF001  ours


@router.get("/models")
async def list_models(_: Anyone) -> dict[str, Any]:
    """List the fleet's one model name. Requests may name any model; the fleet's engines read them all."""
    return {"object": "list", "data": [_MODEL]}


@router.get("/models/{model:path}")
async def look_at_model(_: Anyone, model: str) -> dict[str, Any]:
    """Get the fleet as a model."""
    if model != _MODEL["id"]:
        raise ProblemError(HTTPStatus.NOT_FOUND, "model_not_found", "The fleet has one model name, pecia.")
    return _MODEL
