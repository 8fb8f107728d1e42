"""Documents from the web: what is fetched, what is refused, and what is cut off; against a real server."""

import gzip
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pecia_schemas.failures import FailureCode
from pecia_workers.outgoing.sources import MAX_REDIRECTS, Web
from tests.shared import fetching
from tests.shared.document_server import Answer, DocumentServer, handing_out
from tests.shared.fetching import DOCUMENT, LIMIT, REFUSED, TOKEN, UNREACHABLE
from tests.shared.limits import WAIT_S
from tests.shared.tls_servers import Authority

INSIDE: dict[str, Any] = {"source_allow": ("127.0.0.0/8", "::1/128"), "source_ports": ()}
fetch: Callable[..., bytes] = partial(fetching.fetch, Web, **INSIDE)
failure: Callable[..., tuple[FailureCode, str]] = partial(fetching.failure, Web, **INSIDE)


@pytest.fixture
def server() -> Iterator[DocumentServer]:
    with handing_out() as server:
        yield server


def leading_to(server: DocumentServer, location: str) -> str:
    return server.plan("/from", Answer(status=302, headers={"Location": location}))


@pytest.mark.parametrize("length", [-1, None], ids=["announced", "to the end"])
def test_a_document_comes_as_it_is_whatever_its_type_says(server: DocumentServer, length: int | None) -> None:
    server.plan("/ward/scan.txt", Answer(DOCUMENT, headers={"Content-Type": "text/html"}, length=length))
    url = server.url(f"/ward/scan.txt?token={TOKEN}#page=2", "localhost")
    assert fetch(url, source_hosts=("LocalHost", "*.example.org")) == DOCUMENT
    assert server.asked == [f"/ward/scan.txt?token={TOKEN}"]
    assert server.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(server: DocumentServer, status: int) -> None:
    server.plan("/scan", Answer(DOCUMENT))
    url = server.plan("/from", Answer(b"moved", status=status, headers={"Location": "/scan"}))
    assert fetch(url) == DOCUMENT


def test_tls_is_held_to_the_name_and_not_left(
    server: DocumentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with handing_out(authority.context()) as right, handing_out(authority.context("other.test")) as wrong:
        urls = [one.plan("/scan", Answer(DOCUMENT)) for one in (right, wrong, server)]
        assert fetch(urls[0]) == DOCUMENT
        assert failure(urls[1]) == (UNREACHABLE, "The URL's server presents a certificate for another name.")
        assert failure(leading_to(right, urls[2])) == (REFUSED, "The URL redirects from https to http.")
        broken = right.plan("/noise", Answer(DOCUMENT, length=2 * len(DOCUMENT), then="noise"))
        assert failure(broken)[0] is UNREACHABLE
        assert wrong.asked == server.asked == []


def test_a_private_address_is_not_called_unless_its_network_is_allowed(server: DocumentServer) -> None:
    url = server.plan("/scan", Answer(DOCUMENT))
    assert failure(url, source_allow=()) == (
        REFUSED,
        "The URL's host, or that of a redirect, has an address that is not public.",
    )
    assert server.asked == []


@pytest.mark.parametrize(
    "location",
    [
        "http://10.0.0.1/meta",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:10.0.0.1]/",
        "//10.0.0.1/",
        "file:///etc/passwd",
        f"s3://{TOKEN}/key",
        "http://user:password@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http:///",
    ],
)
def test_where_a_redirect_leads_is_judged_anew(server: DocumentServer, location: str) -> None:
    code, _ = failure(leading_to(server, location))
    assert code is REFUSED


def test_a_redirect_leads_to_no_other_host_or_port_than_those_named(server: DocumentServer) -> None:
    server.plan("/scan", Answer(DOCUMENT))
    url = leading_to(server, server.url("/scan", "localhost"))
    assert failure(url, source_hosts=("127.0.0.1",))[0] is REFUSED
    with handing_out() as other:
        url = leading_to(server, other.plan("/scan", Answer(DOCUMENT)))
        assert failure(url, source_ports=(server.server_port,))[0] is REFUSED
        assert other.asked == []


def test_redirects_come_to_an_end(server: DocumentServer) -> None:
    url = leading_to(server, "/from")
    assert failure(url) == (REFUSED, f"The URL is redirected more than {MAX_REDIRECTS} times.")
    assert len(server.asked) == 1 + MAX_REDIRECTS


BOMB = Answer(gzip.compress(b"\0" * 10_000_000), headers={"Content-Encoding": "gzip"})
STATUSES = {REFUSED: (204, 206, 304, 401, 404, 410), UNREACHABLE: (408, 429, 500, 503)}
SLOW = Answer(DOCUMENT, length=LIMIT, then="trickle")
BROKEN = "The URL's server aborted the connection, or does not speak HTTP."


@pytest.mark.parametrize(
    ("answer", "settings", "code", "found"),
    [
        *(
            (Answer(status=status), {}, code, f"The URL's server answered {status}.")
            for code, statuses in STATUSES.items()
            for status in statuses
        ),
        (BOMB, {}, REFUSED, ""),
        (Answer(DOCUMENT, length=len(DOCUMENT) + 1), {}, UNREACHABLE, BROKEN),
        (Answer(DOCUMENT, length=LIMIT, then="reset"), {}, UNREACHABLE, ""),
        (Answer(length=0), {}, FailureCode.EMPTY, ""),
        (Answer(length=None), {}, FailureCode.EMPTY, ""),
        (
            Answer(DOCUMENT, length=LIMIT, then="hang"),
            {"source_silence": 2},
            UNREACHABLE,
            "The URL's server sent nothing for too long.",
        ),
        (SLOW, {"source_timeout": 2}, UNREACHABLE, "The URL's server took too long."),
    ],
)
def test_a_document_that_does_not_come_whole_says_why_and_if_a_retry_may_help(
    server: DocumentServer, answer: Answer, settings: dict[str, Any], code: FailureCode, found: str
) -> None:
    failed, said = failure(server.plan(f"/{TOKEN}", answer), **settings)
    assert failed is code
    assert said.startswith(found)
    assert not settings or server.cut.wait(WAIT_S)


@pytest.mark.parametrize(
    ("answer", "most"),
    [
        (Answer(length=LIMIT + 1, then="hang"), 0),
        (Answer(length=None, then="flood"), LIMIT),
        (Answer(length=900_000_000, then="flood"), LIMIT),
    ],
    ids=["announced", "endless", "longer than announced"],
)
def test_a_document_too_large_is_cut_off_at_the_limit(
    server: DocumentServer, answer: Answer, most: int
) -> None:
    file = io.BytesIO()
    code, said = failure(server.plan("/large", answer), file)
    assert code is FailureCode.TOO_LARGE
    if answer.then == "hang":
        assert said == f"The file has {LIMIT + 1} bytes: {LIMIT} are allowed (PECIA_MAX_PAYLOAD_BYTES)."
    assert len(file.getvalue()) <= most
    assert server.cut.wait(WAIT_S)


def test_a_server_that_is_away_may_come_back() -> None:
    with handing_out() as server:
        url = server.url("/scan")
    assert failure(url) == (UNREACHABLE, "The URL's server cannot be reached.")
    assert failure(f"http://{TOKEN}.invalid/scan")[0] is UNREACHABLE
