"""No error and no log quotes a document, its name, what was said about it, or what was asked of it."""

import io
import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pydantic import BaseModel, field_validator

from pecia import CaptionVideo, Client, GenerationOptions, Page, ReadDocument, Webhook, sources
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import ClientSettings
from pecia_schemas.tasks import task_from_json
from tests.shared.samples import page as sample_page

WORD = "Quillfeather"
ELSEWHERE = f"http://{WORD}.example/"
TASK: Any = ReadDocument
VIDEO: Any = CaptionVideo
OPTIONS: Any = GenerationOptions
HOOK: Any = Webhook


class Number(BaseModel):
    who: int


class Another(BaseModel):
    who: str

    @field_validator("who")
    @classmethod
    def refuse(cls, _value: str) -> str:
        raise ValueError("not this one")


def asking(**entries: Any) -> ReadDocument:
    """Return a task for fields, one of which is the word."""
    return ReadDocument(b"", fields={"type": "object", "properties": {WORD: entries}})


def page(**about: Any) -> Page:
    return sample_page(**{"text": WORD, "fields": {"who": WORD}, **about})


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
    "a page that is none": lambda: page(width=WORD),
    "fields of another model": lambda: page().fields_as(Number),
    "fields that their model refuses": lambda: page().fields_as(Another),
}

SUBMITS: dict[str, Callable[[Client], Any]] = {
    "a file that is not there": lambda client: client.submit(ReadDocument(Path("/nowhere") / WORD)),
    "a stream of text": lambda client: client.submit(TASK(io.StringIO(WORD))),
    "metadata that is too long": lambda client: client.submit(ReadDocument(b""), metadata={"a": WORD * 100}),
    "a key that is too long": lambda client: client.submit(ReadDocument(b""), idempotency_key=WORD * 100),
    "a webhook that is no URL": lambda client: client.submit(ReadDocument(b""), webhook=WORD),
    "a schema with an unknown type": lambda client: client.submit(asking(type=WORD)),
    "a schema with a broken rule": lambda client: client.submit(asking(enum=WORD)),
    "a schema that is elsewhere": lambda client: client.submit(asking(**{"$ref": ELSEWHERE})),
    "a schema with a hole": lambda client: client.submit(asking(**{"$ref": f"#/{WORD}"})),
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
    with pytest.raises(ValueError, match="valid integer") as raised:
        page().fields_as(Number)
    (found,) = getattr(raised.value, "errors")()  # noqa: B009  pydantic's
    assert (found["loc"], found["input"]) == (("who",), WORD)


ORIENTATION, DESCRIPTION, ARTIST = 0x0112, 0x010E, 0x013B


def picture(form: str) -> bytes:
    """Return a picture whose notes hold the word."""
    file, exif, note = io.BytesIO(), Image.Exif(), PngInfo()
    exif[ORIENTATION], exif[DESCRIPTION], exif[ARTIST] = 6, WORD, WORD
    note.add_text("Title", WORD)
    Image.new("L", (80, 60), 255).save(file, form, exif=exif, pnginfo=note)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_pictures_notes_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str) -> None:
    content = picture(form)
    assert WORD.encode() in content
    with caplog.at_level(logging.DEBUG):
        stored = sources.store(PayloadStore.open(str(tmp_path)), content)
    assert isinstance(stored.payload, PayloadRef)
    assert stored.payload.media_type
    assert stored.pixels == (None if form == "TIFF" else (60, 80))
    assert WORD not in caplog.text


SCRIPT = """
import logging
from pecia_schemas.settings import WorkerSettings
from pecia_workers.observability.tracing import configure_logs

configure_logs(WorkerSettings(log_format="{form}"))

def read(page):
    raise LookupError("no such font")

try:
    read("Quill" + "feather")
except LookupError:
    logging.getLogger("some.library").exception("could not read")
"""


@pytest.mark.gate
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_librarys_error_shows_no_variable(form: str) -> None:
    script = SCRIPT.replace("{form}", form)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "could not read" in ran.stderr
    assert "LookupError" in ran.stderr
    assert "Quillfeather" not in ran.stderr


PART_SCRIPT = """
import asyncio, logging, sys
from uuid import UUID

import structlog
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.ledger import Grouped
from pecia_workers.observability.tracing import about_part, configure_logs

configure_logs(WorkerSettings(log_format="json"))
ours, theirs = structlog.get_logger("ours"), logging.getLogger("a.library")

async def together(items):
    ours.info("in a group")
    return items

grouped = Grouped(together, most=8)

async def work(number):
    with about_part(UUID(int=number), UUID(int=number + 10), number):
        ours.info("begun", who=number)
        await asyncio.sleep(0)
        theirs.warning("of a library %d", number)
        await asyncio.to_thread(ours.info, "in a thread", who=number)
        await asyncio.create_task(later(number))
        await grouped(number)
    ours.info("after")

async def later(number):
    ours.info("in a task", who=number)

async def main():
    await asyncio.gather(work(1), work(2))
    theirs.error("lost", extra={"part": "a-part", "args_of_celery": "Quillfeather"})

asyncio.run(main())
"""


@pytest.mark.gate
def test_a_line_about_a_part_and_no_other_carries_its_ids_and_of_what_a_library_adds_the_part_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", PART_SCRIPT], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]

    about = [line for line in lines if "who" in line or line["event"].startswith("of a library")]
    assert len(about) == 8
    for line in about:
        number = line.get("who") or int(line["event"][-1])
        assert (line["job"], line["part"]) == (str(UUID(int=number)), str(UUID(int=number + 10)))
        assert line["attempt"] == number
        assert {"timestamp", "level", "logger"} <= line.keys()
    others = [line for line in lines if line["event"] in ("in a group", "after")]
    assert len(others) >= 3
    assert not any({"job", "part", "attempt"} & line.keys() for line in others)
    (lost,) = [line for line in lines if line["event"] == "lost"]
    assert lost["part"] == "a-part"
    assert "Quillfeather" not in ran.stderr
