"""One redis-py URL serves our scripts and kombu."""

import pytest
from kombu.connection import Connection

from pecia_workers.queue import transport
from pecia_workers.queue.lists import celery_settings


def _connection(url: str) -> Connection:
    transport.install()
    settings = celery_settings(url)
    return Connection(settings["broker_url"], ssl=settings["broker_use_ssl"])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("host", "name"), [("redis.example", "redis.example"), ("[fd00::7]", "fd00::7")])
def test_a_tcp_url_keeps_account_password_and_database(host: str, name: str) -> None:
    connection = _connection(f"redis://fleet:p%40ss%2Fword@{host}:6380/3")
    assert (connection.hostname, connection.port, connection.virtual_host) == (name, 6380, "3")
    assert (connection.userid, connection.password) == ("fleet", "p@ss/word")


def test_a_unix_socket_becomes_kombus_form_and_tls_verifies_unless_the_url_says_otherwise() -> None:
    socket = celery_settings("unix:///run/redis.sock?db=2")["broker_url"]
    assert socket == "redis+socket:///run/redis.sock?virtual_host=2"
    assert celery_settings("rediss://redis.example/0")["broker_use_ssl"] == {"ssl_cert_reqs": "required"}
    trusting = celery_settings("rediss://redis.example/0?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem")
    assert trusting["broker_use_ssl"] == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/etc/ca.pem"}


def test_every_redis_scheme_gets_our_transport() -> None:
    for url in ("redis://localhost/0", "rediss://localhost/0", "unix:///run/redis.sock"):
        assert isinstance(_connection(url).transport, transport.Transport)
