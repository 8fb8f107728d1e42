"""`pecia backfill` hands over what lies below a prefix: each version of a document once, however often it is run."""

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from pecia import UnavailableError
from pecia.cli import endings
from pecia.cli.endings import Ending
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually

pytestmark = pytest.mark.gate

NAME = "Quillfeather"
KEYS = '{"one": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}'
Pecia = Callable[..., Result]


@pytest.fixture
def pecia(pecia: Pecia) -> Pecia:
    return partial(pecia, "backfill")


@pytest.fixture
def archive(tmp_path: Path, picture: Picture) -> Path:
    """Three scans at two depths, and something else."""
    archive = tmp_path / "archive"
    (archive / "2019").mkdir(parents=True)
    for shade, name in enumerate(("a.png", "b.png", f"2019/{NAME}.png")):
        (archive / name).write_bytes(picture(shade=shade))
    (archive / "notes.txt").write_text("call back")
    return archive


@pytest.fixture
def bucket(s3: Any) -> Any:
    """Puts objects into a bucket of its own."""
    s3.create_bucket(Bucket="scans", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield s3
    for one in s3.list_objects_v2(Bucket="scans")["Contents"]:
        s3.delete_object(Bucket="scans", Key=one["Key"])
    s3.delete_bucket(Bucket="scans")


@pytest.fixture
def reached(s3_options: dict[str, str]) -> dict[str, str]:
    return {"PECIA_SOURCE_OPTIONS": json.dumps(s3_options)}


def test_a_folder_is_handed_over_once_and_a_changed_file_anew(
    pecia: Pecia, archive: Path, house: House, picture: Picture
) -> None:
    first = pecia(archive, "--step", 2, "--type", "chart", "--metadata", "run=2019")
    again = pecia(archive)
    repeated = pecia(archive, "--type", "chart")
    (archive / "a.png").write_bytes(picture(shade=9))
    changed = pecia(archive, "--type", "chart", "--json")

    assert first.exit_code == 0, first.output
    assert first.stdout == "3 documents: 3 submitted, 0 submitted before, 0 refused.\n"
    assert again.stdout == "3 documents: 3 submitted, 0 submitted before, 0 refused.\n", "read otherwise"
    assert repeated.stdout == "3 documents: 0 submitted, 3 submitted before, 0 refused.\n"
    told = json.loads(changed.stdout)
    assert (told["documents"], told["new"], told["known"], told["refused"]) == (3, 1, 2, 0)
    charts = house.query("SELECT DISTINCT lane FROM jobs WHERE task->>'document_type' = 'chart'")
    assert charts == [("bulk",)]
    assert house.query('SELECT count(*) FROM jobs WHERE metadata = \'{"run": "2019"}\'') == [(3,)]


def test_of_a_bucket_what_lies_below_the_prefix_is_handed_over_for_the_fleet_to_fetch(
    pecia: Pecia, bucket: Any, reached: dict[str, str], house: House
) -> None:
    for key, content in {
        "in/a.pdf": b"a",
        "in/deep/b.pdf": b"b",
        "in/empty": b"",
        "inside/c.pdf": b"c",
    }.items():
        bucket.put_object(Bucket="scans", Key=key, Body=content)

    first = pecia("s3://scans/in/", **reached)
    bucket.put_object(Bucket="scans", Key="in/a.pdf", Body=b"another")
    again = pecia("s3://scans/in", **reached)

    assert first.stdout == "2 documents: 2 submitted, 0 submitted before, 0 refused.\n", first.output
    assert again.stdout == "2 documents: 1 submitted, 1 submitted before, 0 refused.\n", again.output
    urls = house.query("SELECT task->>'url' FROM jobs ORDER BY 1")
    assert urls == [("s3://scans/in/a.pdf",), ("s3://scans/in/a.pdf",), ("s3://scans/in/deep/b.pdf",)]


def test_a_bucket_that_is_not_there_is_told_in_a_sentence(pecia: Pecia, reached: dict[str, str]) -> None:
    told = pecia("s3://nobody/in", **reached)
    assert told.exit_code != 0
    assert "cannot be listed" in str(told.exception)


def test_an_object_without_url_is_refused(
    pecia: Pecia, bucket: Any, reached: dict[str, str], house: House
) -> None:
    for key in ("in/no\u00a0break.pdf", "in/scan.pdf"):
        bucket.put_object(Bucket="scans", Key=key, Body=b"a")
    told = pecia("s3://scans/in", **reached)
    assert told.exit_code == 2
    assert told.stdout == "2 documents: 1 submitted, 0 submitted before, 1 refused.\n"
    assert "break.pdf: The URL cannot be fetched" in told.stderr
    assert house.query("SELECT task->>'url' FROM jobs") == [("s3://scans/in/scan.pdf",)]


def test_what_a_document_is_known_by_tells_nothing_of_it(pecia: Pecia, archive: Path, house: House) -> None:
    assert pecia(archive).exit_code == 0
    in_clear = house.query("SELECT idempotency_key FROM jobs")
    assert pecia(archive, PECIA_ENCRYPTION_KEYS=KEYS).exit_code == 0
    all_keys = house.query("SELECT idempotency_key FROM jobs")
    assert len(set(all_keys)) == 6, "under a key nobody without it can try names"
    assert not [key for (key,) in (*in_clear, *all_keys) if NAME in key or "archive" in key]


def test_a_dry_run_counts_and_submits_nothing(pecia: Pecia, archive: Path, house: House) -> None:
    size = sum(path.stat().st_size for path in archive.rglob("*.png"))
    assert pecia(archive, "--dry-run").stdout == f"3 documents, {size:,} bytes.\n"
    assert house.query("SELECT count(*) FROM jobs") == [(0,)]


def test_a_worker_that_cannot_read_with_ray_ends_the_command_which_can_be_repeated(
    pecia: Pecia, archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = pecia(archive, "--ray", PECIA_MODEL="")
    assert isinstance(told.exception, UnavailableError), told.output
    assert endings.of(told.exception) is Ending.UNAVAILABLE
    assert "Repeat the command" in str(told.exception)
    assert "The engine 'ray' needs" in capfd.readouterr().err
    assert pecia(archive).stdout.startswith("3 documents: ")


def test_no_more_is_handed_over_than_may_wait(pecia: Pecia, archive: Path, house: House) -> None:
    def handed_over() -> int:
        ((count,),) = house.query("SELECT count(*) FROM jobs")
        return int(count)

    said: list[Result] = []
    run = threading.Thread(
        target=lambda: said.append(pecia(archive, "--step", 1, "--backlog", 2)), daemon=True
    )
    run.start()
    eventually(lambda: handed_over() == 2)
    run.join(timeout=1.5)
    waited = (run.is_alive(), handed_over())
    house.query("UPDATE parts SET state = 'done'")
    run.join(timeout=WAIT_S)

    assert waited == (True, 2)
    assert said[0].stdout == "3 documents: 3 submitted, 0 submitted before, 0 refused.\n"
