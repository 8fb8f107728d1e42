"""Documents from object stores: only what the settings name, whatever the fleet's credentials open."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pecia_schemas.failures import FailureCode
from pecia_workers.outgoing.sources import Buckets
from pecia_workers.protocol.parts import StorageUnavailableError
from tests.shared import fetching
from tests.shared.document_server import Answer, handing_out
from tests.shared.fetching import DOCUMENT, LIMIT, REFUSED, TOKEN, UNREACHABLE
from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate

fetch: Callable[..., bytes] = partial(fetching.fetch, Buckets)
failure: Callable[..., tuple[FailureCode, str]] = partial(fetching.failure, Buckets)
Put = Callable[..., str]


@pytest.fixture(scope="module")
def put(s3: Any) -> Put:
    """Puts an object into a bucket, `archive` or `secrets`, both of which the fleet's credentials open."""
    s3.create_bucket(Bucket="secrets", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

    def run(name: str, content: bytes = DOCUMENT) -> str:
        bucket, _, key = name.partition("/")
        s3.put_object(Bucket=bucket, Key=key, Body=content)
        return f"s3://{name}"

    return run


@pytest.mark.parametrize(
    ("named", "key", "allowed"),
    [
        ((), "archive/scan.pdf", False),
        (("archives",), "archive/scan.pdf", False),
        (("archiv",), "archive/scan.pdf", False),
        (("archive",), "secrets/scan.pdf", False),
        (("archive/out",), "archive/out/scan.pdf", True),
        (("archive/out/",), "archive/out/scan.pdf", True),
        (("archive/out",), "archive/outside/scan.pdf", False),
        (("archive/out",), "archive/out", False),
        (("archive", "secrets"), "secrets/scan.pdf", True),
        *(
            (("archive",), f"archive/{key}", True)
            for key in ("ward 3/Röntgen #1.pdf", "a%20b.pdf", "what?.pdf")
        ),
    ],
)
def test_only_objects_of_named_buckets_are_read(
    s3_options: dict[str, str], put: Put, named: tuple[str, ...], key: str, allowed: bool
) -> None:
    url = put(key)
    if allowed:
        assert fetch(url, source_options=s3_options, source_buckets=named) == DOCUMENT
    else:
        assert failure(url, source_options=s3_options, source_buckets=named) == (
            REFUSED,
            "The URL's object is in no bucket that PECIA_SOURCE_BUCKETS names.",
        )


@pytest.mark.parametrize(
    "key", ["archive/out/../scan.pdf", "archive/out/./../../secrets/scan.pdf", "archive/out//x"]
)
def test_no_path_leads_out_of_what_is_named(s3_options: dict[str, str], key: str) -> None:
    assert failure(f"s3://{key}", source_options=s3_options, source_buckets=("archive/out",))[0] is REFUSED


def test_the_payload_stores_own_credentials_are_used_without_others(
    s3_options: dict[str, str], put: Put
) -> None:
    url = put("archive/scan.pdf")
    store = {"payload_url": "s3://elsewhere/payloads", "payload_options": s3_options}
    assert fetch(url, **store, source_buckets=("archive",)) == DOCUMENT


def test_an_object_that_is_not_there_is_refused(s3_options: dict[str, str]) -> None:
    asked = {"source_options": s3_options, "source_buckets": ("archive", "nowhere")}
    assert failure(f"s3://archive/{TOKEN}", **asked) == (REFUSED, "The object store has no such object.")
    assert failure(f"s3://nowhere/{TOKEN}", **asked)[0] is REFUSED


def test_the_limits_hold_for_objects_too(s3_options: dict[str, str], put: Put) -> None:
    asked = {"source_options": s3_options, "source_buckets": ("archive",)}
    large, empty = put("archive/large", b"x" * (LIMIT + 1)), put("archive/empty", b"")
    assert failure(large, **asked) == (
        FailureCode.TOO_LARGE,
        f"The file has {LIMIT + 1} bytes: {LIMIT} are allowed (PECIA_MAX_PAYLOAD_BYTES).",
    )
    assert failure(empty, **asked)[0] is FailureCode.EMPTY


@pytest.mark.parametrize(
    ("answer", "code", "found"),
    [
        (Answer(status=403), REFUSED, "The object store denies the fleet access to the object."),
        (Answer(status=401), REFUSED, "The object store denies the fleet access to the object."),
        (Answer(status=503), UNREACHABLE, "The object store does not answer (GenericError)."),
        (
            Answer(DOCUMENT, length=LIMIT, then="reset"),
            UNREACHABLE,
            "The object store does not answer (GenericError).",
        ),
        (Answer(DOCUMENT, length=LIMIT, then="trickle"), UNREACHABLE, "The object store took too long."),
    ],
)
def test_a_failing_store_is_told_from_one_that_refuses(
    s3_options: dict[str, str], answer: Answer, code: FailureCode, found: str
) -> None:
    with handing_out() as server:
        answer.headers = {"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT", "ETag": '"1"'}
        server.plan(f"/archive/{TOKEN}", answer)
        options = s3_options | {"endpoint": server.url("")}
        timeout = 2 if answer.then == "trickle" else WAIT_S
        asked = {"source_options": options, "source_buckets": ("archive",), "source_timeout": timeout}
        assert failure(f"s3://archive/{TOKEN}", **asked) == (code, found)
        assert len(server.asked) == 1


def test_a_full_disk_is_not_told_as_a_store_that_does_not_answer(
    s3_options: dict[str, str], put: Put
) -> None:
    url = put("archive/scan.pdf")
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(StorageUnavailableError, match=r"^No space left on device$"),
    ):
        fetch(url, full, source_options=s3_options, source_buckets=("archive",))


def test_a_store_that_is_away_may_come_back(s3_options: dict[str, str]) -> None:
    with handing_out() as server:
        options = s3_options | {"endpoint": server.url("")}
    found = failure(f"s3://archive/{TOKEN}", source_options=options, source_buckets=("archive",))
    assert found[0] is UNREACHABLE
