"""A watched bucket: each version of an object is read once, also by the process that comes after a killed one."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import Result

from pecia import Client, ReadDocument, UnavailableError
from pecia.cli.bucket import BucketWatch
from pecia.cli.endings import Ending
from pecia.cli.reading import ANY_SOURCE
from pecia.formats import Format
from pecia_schemas.encryption import Keyring
from tests.shared.fixture_types import Picture
from tests.shared.house import House

pytestmark = pytest.mark.gate


@pytest.fixture
def bucket(
    s3: Any, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., set[str]]]:
    """Puts objects into a bucket of its own, and returns what is in it."""
    s3.create_bucket(Bucket="scans", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    monkeypatch.setenv("PECIA_SOURCE_OPTIONS", json.dumps(s3_options))

    def put(**contents: bytes) -> set[str]:
        for name, content in contents.items():
            s3.put_object(Bucket="scans", Key=f"in/{name.replace('__', '/').replace('_', '.')}", Body=content)
        found = s3.list_objects_v2(Bucket="scans").get("Contents", [])
        return {one["Key"] for one in found if "/.pecia/" not in one["Key"]}

    yield put
    for one in s3.list_objects_v2(Bucket="scans").get("Contents", []):
        s3.delete_object(Bucket="scans", Key=one["Key"])
    s3.delete_bucket(Bucket="scans")


@pytest.fixture
def watch(client: Client) -> Callable[..., BucketWatch]:
    """Begins to watch, as each start of the command does."""

    def begun(report: Callable[..., None] = lambda *_: None, *, recursive: bool = False) -> BucketWatch:
        return BucketWatch(
            client=client,
            task=ReadDocument(ANY_SOURCE),
            options={"batch": "watched"},
            where="s3://scans/in/",
            out="s3://scans/in/done",
            failed="s3://scans/in/failed",
            form=Format.TEXT,
            recursive=recursive,
            keys=Keyring(),
            report=report,
        )

    return begun


@pytest.fixture
def work(house: House, s3_options: dict[str, str]) -> Callable[[BucketWatch], None]:
    """Has a fleet read what a watch has submitted."""

    def read(watch: BucketWatch) -> None:
        house.work_off(*watch.jobs.values(), source_options=s3_options, source_buckets=("scans",))

    return read


def test_each_version_is_read_once_and_a_failure_has_its_reason(
    bucket: Callable[..., set[str]],
    watch: Callable[..., BucketWatch],
    work: Callable[[BucketWatch], None],
    picture: Picture,
    house: House,
) -> None:
    there = bucket(a_png=picture(shade=1), ward__b_png=picture(shade=2), broken_pdf=b"%PDF-1.7 no document")
    told: list[str] = []
    first = watch(lambda name, *_: told.append(name))
    first.search()
    work(first)
    first.settle()

    assert sorted(told) == ["a.png", "broken.pdf"]
    assert bucket() == there | {"in/done/a.png.txt", "in/failed/broken.pdf.error.txt"}
    assert not first.is_busy

    again = watch()
    again.search()
    assert not again.jobs
    bucket(a_png=picture(shade=3))
    again.search()
    assert list(again.jobs) == ["a.png"]
    work(again)
    again.settle()
    assert house.query("SELECT count(*) FROM jobs") == [(3,)]


def test_what_a_killed_process_had_submitted_is_finished_by_the_next_one(
    bucket: Callable[..., set[str]],
    watch: Callable[..., BucketWatch],
    work: Callable[[BucketWatch], None],
    picture: Picture,
) -> None:
    bucket(a_png=picture(), ward__b_png=picture(shade=2))
    killed = watch(recursive=True)
    killed.search()
    after = watch(recursive=True)
    after.search()
    assert {name: job.id for name, job in after.jobs.items()} == {
        name: job.id for name, job in killed.jobs.items()
    }
    work(after)
    after.settle()
    after.search()
    assert not after.is_busy
    assert {"in/done/a.png.txt", "in/done/ward/b.png.txt"} <= bucket()


def test_an_object_whose_submit_failed_is_submitted_by_the_next_search(
    bucket: Callable[..., set[str]], watch: Callable[..., BucketWatch], picture: Picture, client: Client
) -> None:
    bucket(a_png=picture())
    watching = watch()
    with pytest.MonkeyPatch.context() as away:
        away.setattr(client, "submit_many", raises_unavailable)
        with pytest.raises(UnavailableError):
            watching.search()
    assert watching.is_busy
    watching.search()
    assert list(watching.jobs) == ["a.png"]


def raises_unavailable(*_: object, **__: object) -> None:
    raise UnavailableError("The stores do not answer.")


def test_an_empty_prefix_ends_at_once_and_a_bucket_that_is_not_there_is_told(
    bucket: Callable[..., set[str]], pecia: Callable[..., Result]
) -> None:
    assert not bucket()
    assert pecia("watch-folder", "s3://scans/in", "--once").exit_code == Ending.DONE
    told = pecia("watch-folder", "s3://nobody/in", "--once")
    assert told.exit_code != Ending.DONE
    assert "cannot be" in str(told.exception)
