"""TLS that goes wrong, at receivers of callbacks and servers of documents: one short reason, in time, and no more."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import psutil
import pytest
from structlog.testing import capture_logs

from pecia_schemas.failures import FailureCode
from pecia_workers.outgoing.sources import Web
from tests.shared import fetching
from tests.shared.fetching import UNREACHABLE
from tests.shared.limits import eventually
from tests.shared.receivers import Outbox, outbox
from tests.shared.tls_faults import answering, tls_faults
from tests.shared.tls_servers import Authority

__all__ = ["outbox"]

SECONDS = timedelta(seconds=3)
EXPECTED = {
    "expired": ("tls_expired", "presents a certificate that has expired, or is not valid yet"),
    "another name": ("tls_other_name", "presents a certificate for another name"),
    "unknown authority": (
        "tls_untrusted",
        "presents a certificate from an authority that the fleet does not trust",
    ),
    "self-signed": (
        "tls_untrusted",
        "presents a certificate from an authority that the fleet does not trust",
    ),
    "short key": ("tls_weak", "presents a certificate with a key or a digest that is too weak"),
    "certificate of 1 MB": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "TLS 1.0": ("tls_version", "supports no version of TLS that the fleet supports"),
    "client certificate": (
        "tls_client_certificate",
        "requires a client certificate, which the fleet does not have",
    ),
    "client certificate, TLS 1.2": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "stalls": ("timeout", "sent nothing for too long"),
    "stalls in the handshake": ("timeout", "sent nothing for too long"),
    "noise": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "plain HTTP": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "closes": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "resets": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "no protocol in common": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "unknown name": ("tls_handshake", "aborted the TLS handshake, or does not speak TLS"),
    "closes in the answer": ("not_http", "aborted the connection, or does not speak HTTP"),
    "noise in the answer": ("connection_broken", "aborted the connection, or does not speak HTTP"),
}
"""Code of a delivery, and how the sentence about a document goes on."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Where each faulty server listens, by its name."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SSL_CERT_FILE", str(authority.path))
        faults = tls_faults(authority, Authority(directory, "stranger"))
        assert faults.keys() == EXPECTED.keys()
        yield {name: stack.enter_context(answering(serve)) for name, serve in faults.items()}


def open_now() -> Counter[str]:
    """Return the threads and descriptors of this process, counted by name."""
    this = psutil.Process()
    files = [connection.status for connection in this.net_connections("all")]
    return Counter(
        [*(thread.name for thread in threading.enumerate()), *files, *(f.path for f in this.open_files())]
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_a_document_that_tls_keeps_away_says_why(ports: dict[str, int], name: str) -> None:
    failure: Callable[[str], tuple[FailureCode, str]] = partial(
        fetching.failure, Web, source_allow=("127.0.0.0/8",), source_ports=(), source_silence=SECONDS
    )
    assert failure(f"https://localhost:{ports[name]}/scan") == (
        UNREACHABLE,
        f"The URL's server {EXPECTED[name][1]}.",
    )


def test_a_receiver_with_bad_tls_costs_one_code_for_each_try_and_nothing_stays_open(
    ports: dict[str, int], outbox: Outbox
) -> None:
    urls = [f"https://localhost:{port}/hook" for port in ports.values()]
    before = open_now()
    names = dict(zip(outbox.promise_all(urls), ports, strict=True))

    with capture_logs() as logs, outbox.working(webhook_timeout=SECONDS, webhook_attempts=1):
        eventually(lambda: all(row["state"] == "dead" for row in outbox.rows()))

    codes = {name: code for name, (code, _) in EXPECTED.items()}
    assert {names[row["id"]]: row["last_error"] for row in outbox.rows()} == codes
    tries = outbox.query("SELECT delivery_id, error, reply FROM delivery_attempts")
    assert {names[row["delivery_id"]]: row["error"] for row in tries} == codes
    assert {row["reply"] for row in tries} == {None}
    assert {entry["event"] for entry in logs} == {"callback_tried"}
    outbox.close()
    eventually(lambda: open_now() <= before)
