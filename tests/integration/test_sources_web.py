"""Documents from the web: what is fetched, what is refused, and what is cut off; against a real server."""

import gzip
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fetching
from document_server import Answer, DocumentServer, handing_out
from fetching import DOCUMENT, LIMIT, REFUSED, TOKEN, UNREACHABLE
from limits import WAIT_S
from pecia_schemas.failures import FailureCode
from pecia_workers.sources import MAX_REDIRECTS, Web
from tls_servers import Authority

INSIDE: dict[str, Any] = {"source_allow": ("127.0.0.0/8", "::1/128"), "source_ports": ()}
fetch: Callable[..., bytes] = partial(fetching.fetch, Web, **INSIDE)
failure: Callable[..., tuple[FailureCode, str]] = partial(fetching.failure, Web, **INSIDE)


@pytest.fixture
def server() -> Iterator[DocumentServer]:
    with handing_out() as server:
        yield server


def leading_to(server: DocumentServer, location: str) -> str:
    return server.plan("/from", Answer(status=302, headers={"Location": location}))


def test_a_document_comes_as_it_is_whatever_its_name_and_type_say(server: DocumentServer) -> None:
    server.plan("/ward/scan.txt", Answer(DOCUMENT, headers={"Content-Type": "text/html"}))
    assert fetch(server.url(f"/ward/scan.txt?token={TOKEN}#page=2")) == DOCUMENT
    assert server.asked == [f"/ward/scan.txt?token={TOKEN}"]
    assert server.headers[0]["Accept-Encoding"] == "identity"


def test_a_document_of_no_announced_length_comes_to_its_end(server: DocumentServer) -> None:
    assert fetch(server.plan("/scan", Answer(DOCUMENT, length=None))) == DOCUMENT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(server: DocumentServer, status: int) -> None:
    server.plan("/scan", Answer(DOCUMENT))
    url = server.plan("/from", Answer(b"moved", status=status, headers={"Location": "/scan"}))
    assert fetch(url) == DOCUMENT


def test_a_host_by_its_name_is_one_of_those_named(server: DocumentServer) -> None:
    server.plan("/scan", Answer(DOCUMENT))
    assert fetch(server.url("/scan", "localhost"), source_hosts=("LocalHost", "*.example.org")) == DOCUMENT


def test_tls_is_held_to_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with handing_out(authority.context()) as right, handing_out(authority.context("other.test")) as wrong:
        urls = [server.plan("/scan", Answer(DOCUMENT)) for server in (right, wrong)]
        assert fetch(urls[0]) == DOCUMENT
        assert failure(urls[1]) == (UNREACHABLE, "The URL's server has no certificate that is good for it.")
        assert wrong.asked == []


def test_a_private_address_is_not_called_unless_its_network_is_allowed(server: DocumentServer) -> None:
    url = server.plan("/scan", Answer(DOCUMENT))
    assert failure(url, source_allow=()) == (
        REFUSED,
        "The URL's host, or one that it leads to, has an address that is not public.",
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


def test_nothing_leads_from_https_to_http(
    server: DocumentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    server.plan("/scan", Answer(DOCUMENT))
    with handing_out(authority.context()) as secure:
        url = leading_to(secure, server.url("/scan"))
        assert failure(url) == (REFUSED, "The URL leads from https to http.")
    assert server.asked == []


def test_redirects_come_to_an_end(server: DocumentServer) -> None:
    url = leading_to(server, "/from")
    assert failure(url) == (REFUSED, f"The URL is redirected more than {MAX_REDIRECTS} times.")
    assert len(server.asked) == 1 + MAX_REDIRECTS


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (204, REFUSED),
        (206, REFUSED),
        (304, REFUSED),
        (401, REFUSED),
        (404, REFUSED),
        (410, REFUSED),
        (408, UNREACHABLE),
        (429, UNREACHABLE),
        (500, UNREACHABLE),
        (503, UNREACHABLE),
    ],
)
def test_a_status_says_if_a_retry_may_help(server: DocumentServer, status: int, code: FailureCode) -> None:
    url = server.plan(f"/{TOKEN}", Answer(b"" if status in (204, 304) else b"sorry", status=status))
    assert failure(url) == (code, f"The URL's server answered {status}.")


def test_what_is_compressed_is_not_unpacked(server: DocumentServer) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    url = server.plan("/bomb", Answer(bomb, headers={"Content-Encoding": "gzip"}))
    assert failure(url)[0] is REFUSED


def test_what_is_announced_as_too_large_is_not_waited_for(server: DocumentServer) -> None:
    file = io.BytesIO()
    url = server.plan("/large", Answer(length=LIMIT + 1, then="hang"))
    assert failure(url, file) == (
        FailureCode.TOO_LARGE,
        f"The file has {LIMIT + 1} bytes: {LIMIT} are allowed (PECIA_MAX_PAYLOAD_BYTES).",
    )
    assert file.getvalue() == b""
    assert server.cut.wait(WAIT_S)


@pytest.mark.parametrize("length", [None, 900_000_000])
def test_an_endless_document_is_cut_off_at_the_limit(server: DocumentServer, length: int | None) -> None:
    file = io.BytesIO()
    url = server.plan("/endless", Answer(length=length, then="flood"))
    code, _ = failure(url, file)
    assert code is FailureCode.TOO_LARGE
    assert len(file.getvalue()) <= LIMIT
    assert server.cut.wait(WAIT_S)


def test_less_than_was_announced_is_no_document(server: DocumentServer) -> None:
    url = server.plan("/scan", Answer(DOCUMENT, length=len(DOCUMENT) + 1))
    assert failure(url) == (UNREACHABLE, "The URL's server broke off, or speaks no HTTP.")


def test_a_connection_that_breaks_in_the_middle_is_tried_again(server: DocumentServer) -> None:
    assert failure(server.plan("/scan", Answer(DOCUMENT, length=LIMIT, then="reset")))[0] is UNREACHABLE


def test_an_encryption_that_breaks_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with handing_out(authority.context()) as server:
        url = server.plan("/scan", Answer(DOCUMENT, length=2 * len(DOCUMENT), then="noise"))
        assert failure(url)[0] is UNREACHABLE


@pytest.mark.parametrize("length", [0, None])
def test_a_document_without_a_byte_is_empty(server: DocumentServer, length: int | None) -> None:
    assert failure(server.plan("/scan", Answer(length=length)))[0] is FailureCode.EMPTY


@pytest.mark.parametrize(
    ("then", "settings", "found"),
    [
        ("hang", {"source_silence": 0.2}, "The URL's server was silent for too long."),
        ("trickle", {"source_timeout": 0.3}, "The URL's server took too long."),
    ],
)
def test_a_server_that_keeps_us_waiting_is_left(
    server: DocumentServer, then: Any, settings: dict[str, Any], found: str
) -> None:
    url = server.plan("/slow", Answer(DOCUMENT, length=LIMIT, then=then))
    assert failure(url, **settings) == (UNREACHABLE, found)
    assert server.cut.wait(WAIT_S)


def test_a_server_that_is_away_may_come_back() -> None:
    with handing_out() as server:
        url = server.url("/scan")
    assert failure(url) == (UNREACHABLE, "The URL's server cannot be reached.")
    assert failure(f"http://{TOKEN}.invalid/scan")[0] is UNREACHABLE
