"""No error that a caller sees quotes a document, its name, what was said about it, or what was asked of it."""

import io
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from pecia import CaptionVideo, Client, GenerationOptions, Page, ReadDocument, Verdict, Webhook
from pecia_schemas.settings import ClientSettings
from pecia_schemas.tasks import task_from_json

WORD = "Quillfeather"
ELSEWHERE = f"http://{WORD}.example/"
TASK: Any = ReadDocument
VIDEO: Any = CaptionVideo
OPTIONS: Any = GenerationOptions
HOOK: Any = Webhook
PAGE = {"number": 1, "text": WORD, "verdict": Verdict.OK, "width": 1, "height": 1, "engine": "test"}


class Number(BaseModel):
    who: int


class Another(BaseModel):
    who: str

    @field_validator("who")
    @classmethod
    def refuse(cls, _value: str) -> str:
        raise ValueError("not this one")


def fields(**entries: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {WORD: entries}}


MISTAKES: dict[str, Callable[[], Any]] = {
    "a task with an unknown option": lambda: TASK(b"", patient=WORD),
    "a task with two sources": lambda: TASK(b"", WORD),
    "a task with a language that is none": lambda: TASK(b"", language=WORD),
    "a task with fields that are none": lambda: TASK(b"", fields=[WORD]),
    "a source that is none": lambda: TASK([WORD]),
    "a source that looks like a reference": lambda: TASK({"name": WORD}),
    "a style that is none": lambda: VIDEO(b"", style=WORD),
    "an option that is no number": lambda: OPTIONS(temperature=WORD),
    "a webhook without an address": lambda: HOOK(url=WORD),
    "a stored task of another version": lambda: task_from_json("document.read", {"source": {"sha256": WORD}}),
    "a page that is none": lambda: Page.model_validate({**PAGE, "width": WORD}),
    "fields of another model": lambda: Page.model_validate({**PAGE, "fields": {"who": WORD}}).fields_as(
        Number
    ),
    "fields that their model refuses": lambda: Page.model_validate(
        {**PAGE, "fields": {"who": WORD}}
    ).fields_as(Another),
}

SUBMITS: dict[str, Callable[[Client], Any]] = {
    "a file that is not there": lambda client: client.submit(ReadDocument(Path("/nowhere") / WORD)),
    "a stream of text": lambda client: client.submit(TASK(io.StringIO(WORD))),
    "metadata that is too long": lambda client: client.submit(ReadDocument(b""), metadata={"a": WORD * 100}),
    "a key that is too long": lambda client: client.submit(ReadDocument(b""), idempotency_key=WORD * 100),
    "a webhook that is no URL": lambda client: client.submit(ReadDocument(b""), webhook=WORD),
    "a schema with an unknown type": lambda client: client.submit(
        ReadDocument(b"", fields=fields(type=WORD))
    ),
    "a schema with a broken rule": lambda client: client.submit(ReadDocument(b"", fields=fields(enum=WORD))),
    "a schema that is elsewhere": lambda client: client.submit(
        ReadDocument(b"", fields=fields(**{"$ref": ELSEWHERE}))
    ),
    "a schema with a hole": lambda client: client.submit(
        ReadDocument(b"", fields=fields(**{"$ref": f"#/{WORD}"}))
    ),
    "a database that is away": lambda client: client.submit(
        ReadDocument(WORD.encode()), metadata={"patient": WORD}, idempotency_key=WORD
    ),
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    urls = {"database_url": "postgresql://u@127.0.0.1:1/x", "redis_url": "redis://127.0.0.1:1"}
    settings = ClientSettings(**urls, payload_url=str(tmp_path), connect_timeout=0)  # type: ignore[arg-type]
    with Client(settings=settings) as client:
        yield client


def told(call: Callable[[], Any]) -> str:
    """Return all that a traceback says, but for the lines of this file that it shows."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  whatever it is
        call()
    lines = traceback.format_exception(raised.value)
    return "".join(line for line in lines if __file__ not in line)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_an_error_does_not_quote_what_it_is_about(mistake: Callable[[], Any]) -> None:
    assert WORD not in told(mistake)


@pytest.mark.parametrize("submit", SUBMITS.values(), ids=SUBMITS.keys())
def test_a_refused_submit_quotes_nothing(client: Client, submit: Callable[[Client], Any]) -> None:
    assert WORD not in told(lambda: submit(client))


def test_what_did_not_fit_a_model_can_be_asked_for() -> None:
    page = Page.model_validate({**PAGE, "fields": {"who": WORD}})
    with pytest.raises(ValueError, match="valid integer") as raised:
        page.fields_as(Number)
    (found,) = getattr(raised.value, "errors")()  # noqa: B009  pydantic's
    assert (found["loc"], found["input"]) == (("who",), WORD)
