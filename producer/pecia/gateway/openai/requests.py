"""A request for one page, in the form of OpenAI's chat completions, and its task."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pecia import request
from pecia.errors import InvalidOptionError, InvalidSourceError, SubmitError
from pecia.gateway.bodies import ReadTask
from pecia.gateway.submitting import NO_OPTIONS
from pecia.request import Item, Options, Submission
from pecia_schemas import storable
from pecia_schemas.media import URL_SCHEMES, UrlRef
from pecia_schemas.results import Document
from pecia_schemas.tasks import ReadDocument

COMPLETIONS: Final = "/v1/chat/completions"
MOST_LINE: Final = 24 * 1024**2
"""Maximum size of a request as JSON, which is held in memory, in bytes."""


class _Lenient(BaseModel):
    """Part of a request. Other members, such as sampling options, are ignored."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _ImageUrl(_Lenient):
    url: str


class _Content(_Lenient):
    image_url: _ImageUrl | str | None = None
    """A plain string as URL is accepted too, as in vLLM."""

    @property
    def url(self) -> str | None:
        return self.image_url.url if isinstance(self.image_url, _ImageUrl) else self.image_url


class _Message(_Lenient):
    role: str
    content: str | list[_Content] | None = None


class _JsonSchema(_Lenient):
    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(_Lenient):
    type: Literal["text", "json_schema", "json_object"]
    json_schema: _JsonSchema | None = None


class ChatRequest(_Lenient):
    """A chat completion request for one page."""

    model: str
    messages: list[_Message]
    response_format: _ResponseFormat | None = None
    n: int | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    logprobs: bool | None = None
    pecia: dict[str, Any] = Field(default_factory=dict)
    """Options of `ReadDocument`, such as `language`."""

    def task(self) -> ReadDocument:
        """Return the task of this request. Raises `InvalidOptionError` or `InvalidSourceError`."""
        if self.stream or self.tools or self.logprobs or (self.n or 1) != 1:
            raise InvalidOptionError("stream, tools, logprobs and n are not supported: leave them out.")
        pictures = [
            part.url
            for message in self.messages
            if isinstance(message.content, list)
            for part in message.content
            if part.url is not None
        ]
        if len(pictures) != 1:
            raise InvalidSourceError(f"A request must have one image_url, not {len(pictures)}.")
        try:
            options = ReadTask.model_validate(self.pecia)
        except ValidationError as error:
            raise InvalidOptionError(first_of(error, "pecia")) from None
        given = {name: getattr(options, name) for name in options.model_fields_set if name not in NO_OPTIONS}
        if (schema := self._schema()) is not None:
            given["fields"] = schema
        return ReadDocument(_source(pictures[0]), **given)

    def _schema(self) -> dict[str, Any] | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if form.json_schema is None:
            raise InvalidOptionError(
                "To get fields, use a response_format of type json_schema with a schema."
            )
        return form.json_schema.schema_


def parse_chat(written: bytes) -> ChatRequest:
    """Parse the body of a request. Raises `InvalidOptionError`."""
    try:
        return ChatRequest.model_validate_json(written)
    except ValidationError as error:
        raise InvalidOptionError(first_of(error)) from None


def first_of(error: ValidationError, *before: str) -> str:
    """Return the first validation error as a sentence, without quoting the input."""
    (first, *_) = error.errors(include_url=False, include_input=False)
    return f"{'.'.join(map(str, (*before, *first['loc']))) or 'The request'}: {first['msg']}."


def _source(url: str) -> bytes | UrlRef:
    head, _, data = url.partition(",")
    if head.lower().startswith("data:"):
        try:
            return base64.b64decode(data if head.lower().endswith(";base64") else "-", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidSourceError("The data URL is not base64: write data:image/png;base64,…") from None
    if not url.lower().startswith(URL_SCHEMES):
        raise InvalidSourceError("An image must be a data: URL, or a URL that the fleet can fetch.")
    return UrlRef(url=url)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file of requests."""

    number: int
    custom_id: str | None
    request: Submission[Document] | SubmitError
    """Or why it is none."""


class _Envelope(_Lenient):
    custom_id: str = Field(min_length=1, max_length=storable.LABEL)
    method: Literal["POST"] = "POST"
    url: Literal["/v1/chat/completions"]
    body: ChatRequest


def parse_line(number: int, written: bytes, batch: str, options: Options) -> Line:
    """Parse a line of a file. Its idempotency key makes it one job, however often it is submitted."""
    custom_id = None
    try:
        if len(written) > MOST_LINE:
            raise InvalidOptionError(f"A line may have at most {MOST_LINE:,} bytes.")
        value = json.loads(written)
        custom_id = value.get("custom_id") if isinstance(value, dict) else None
        custom_id = custom_id if isinstance(custom_id, str) else None
        envelope = _Envelope.model_validate(value)
        own = Submission(envelope.body.task(), key=f"{batch}/{number}", label=envelope.custom_id)
        request.check(Item(number, own), options)
    except SubmitError as error:
        return Line(number, custom_id, error)
    except ValidationError as error:
        return Line(number, custom_id, InvalidOptionError(first_of(error)))
    except (ValueError, RecursionError):
        return Line(number, custom_id, InvalidOptionError("The line is not valid JSON."))
    return Line(number, custom_id, own)


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines that are not blank. A line over the limit is cut after `MOST_LINE` + 1 bytes, or a bit later."""
    while line := file.readline(MOST_LINE + 1):
        rest = line
        while len(rest) > MOST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(MOST_LINE + 1)
        if not line.isspace():
            yield line
