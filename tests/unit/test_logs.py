"""What the fleet's logs say of an error: where it happened, not what was in hand there."""

import json
import subprocess
import sys
from uuid import UUID

import pytest

pytestmark = pytest.mark.gate

SCRIPT = """
import logging
from pecia_schemas.settings import WorkerSettings
from pecia_workers.tracing import configure_logs

configure_logs(WorkerSettings(log_format="{form}"))

def read(page):
    raise LookupError("no such font")

try:
    read("Quill" + "feather")
except LookupError:
    logging.getLogger("some.library").exception("could not read")
"""


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
from pecia_workers.tracing import about_part, configure_logs

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
