"""An archive that `pecia backfill --ray` reads: killed in the middle and repeated, each page is read once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from PIL import Image

from fleets import READY_S
from offline import KV_CACHE_BYTES, MOST_TOKENS, SIZES, picture
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet, workers_of
from tests.shared.limits import WAIT_S, eventually

pytest.importorskip("ray", reason="pecia[ray] brings Ray")

pytestmark = pytest.mark.xdist_group("ray")

SCANS, PAGES_OF_ONE = 24, 4
PAGES = SCANS + PAGES_OF_ONE
SOME = 3


@pytest.fixture
def fleet(short_path: Path) -> Iterator[LocalFleet]:
    """Stores, and the workers that cut and repair: none of them reads."""
    settings = WorkerSettings(flower_port=0, decode_processes=1)
    workers = [worker for worker in workers_of(settings) if worker.name in ("ingest", "upkeep")]
    with LocalFleet(short_path, settings=settings, workers=workers, announce=False) as fleet:
        fleet.wait_ready(READY_S)
        yield fleet


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Scans, and a document that has to be cut first."""
    archive = tmp_path / "archive"
    archive.mkdir()
    pages = [Image.fromarray(picture(number)) for number in range(PAGES)]
    for number, page in enumerate(pages[:SCANS]):
        page.save(archive / f"{number:02}.png")
    pages[SCANS].save(archive / "letter.pdf", save_all=True, append_images=pages[SCANS + 1 :])
    return archive


def environment(fleet: LocalFleet, model: Path) -> dict[str, str]:
    urls = fleet.settings
    sizes = {f"PECIA_{name.upper()}": json.dumps(value) for name, value in SIZES.items()}
    return {
        **os.environ,
        **sizes,
        "PECIA_DATABASE_URL": urls.database_url.get_secret_value(),
        "PECIA_REDIS_URL": urls.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": urls.payload_url,
        "PECIA_MODEL": str(model),
        "PECIA_KV_CACHE_BYTES": str(KV_CACHE_BYTES),
        "PECIA_MAX_NUM_SEQS": "2",  # so that there is a middle
        "PECIA_MAX_OUTPUT_TOKENS": str(MOST_TOKENS),
        "PECIA_MAX_READINGS": "1",
        "PECIA_CACHE": "false",
    }


def backfill(archive: Path, fleet: LocalFleet, model: Path, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pecia", "backfill", str(archive), "--ray", "--json"]
    with said.open("wb") as file:
        return subprocess.Popen(
            command,
            env=environment(fleet, model),
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )


def rows(fleet: LocalFleet, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(fleet.settings.database_url.get_secret_value()) as connection:
        return connection.execute(query.encode()).fetchall()


def pages_read(fleet: LocalFleet) -> dict[Any, tuple[Any, ...]]:
    """Return the pages that are committed: by which attempt, and when."""
    read = rows(fleet, "SELECT id, attempt, finished_at FROM parts WHERE stage = 'read' AND state = 'done'")
    return {part: (attempt, at) for part, attempt, at in read}


def kill(command: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Kill the command and its worker, and return the processes they had; Ray's agents notice only after a minute."""
    (worker,) = psutil.Process(command.pid).children()
    processes = [one for one in worker.children(recursive=True) if "Agent" not in one.name()]
    for process in (command, worker):
        process.send_signal(signal.SIGKILL)
    command.communicate()
    return processes


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_an_archive_whose_reading_was_killed_is_read_to_its_end_by_the_same_command(
    *, fleet: LocalFleet, archive: Path, checkpoint: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    first = backfill(archive, fleet, checkpoint, said)
    eventually(lambda: len(pages_read(fleet)) >= SOME or first.poll() is not None)
    assert first.poll() is None, said.read_text()
    processes = kill(first)
    before = pages_read(fleet)
    eventually(lambda: not any(alive(process) for process in processes), what="the end of Ray")

    second = backfill(archive, fleet, checkpoint, said)
    told, _ = second.communicate(timeout=WAIT_S)

    assert second.returncode == 0, said.read_text()
    assert json.loads(told)["over"] == {"succeeded": SCANS + 1}
    assert json.loads(told)["known"] == SCANS + 1
    after = pages_read(fleet)
    assert SOME <= len(before) < PAGES
    assert len(after) == PAGES
    assert {part: after[part] for part in before} == before, "a page was read again"
    assert rows(fleet, "SELECT count(*) FROM results") == [(PAGES,)]
    assert rows(fleet, "SELECT DISTINCT engine FROM parts WHERE stage = 'read'") == [("ray",)]
