"""How the fleet reaches Redis: one URL in redis-py's form, for our own scripts and for kombu alike.

Every connection has timeouts, keepalive and health checks, so that a half-open one heals within seconds.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.retry import Retry

SOCKET_TIMEOUT_S = 5
_CONNECT_TIMEOUT_S = 3
HEALTH_CHECK_S = 5
_DEFAULT_PORT = 6379


def connect(url: str) -> Redis:
    """Return a client that decodes responses; it connects when first used.

    It tries a command once more on a new connection, then raises `redis.RedisError`.
    """
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # a writer to Redis can write what is no text
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "health_check_interval": HEALTH_CHECK_S,
        "retry": Retry(NoBackoff(), 1),
    }
    if not _is_unix(_parse(url)):
        options["socket_keepalive"] = True
    return Redis.from_url(url, **options)


def celery_settings(url: str) -> dict[str, Any]:
    """Return the Celery settings that make its broker this Redis."""
    return {
        "broker_url": _kombu_url(url),
        "broker_use_ssl": _ssl_options(url),
        "broker_transport_options": {
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": _CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_CHECK_S,
            "priority_steps": [0],  # a lane is a list of its own
        },
    }


def _kombu_url(url: str) -> str:
    parts = _parse(url)
    account = _account(parts)
    if _is_unix(parts):
        query = urlencode({"virtual_host": parts.get("db", 0)})
        return f"redis+socket://{account}{quote(parts['path'])}?{query}"
    host = parts.get("host", "localhost")
    if ":" in host:
        host = f"[{host}]"
    scheme = "rediss" if _is_tls(parts) else "redis"
    return f"{scheme}://{account}{host}:{parts.get('port', _DEFAULT_PORT)}/{parts.get('db', 0)}"


def _account(parts: dict[str, Any]) -> str:
    user, password = parts.get("username", ""), parts.get("password", "")
    if not user and not password:
        return ""
    return f"{quote(user, safe='')}:{quote(password, safe='')}@"


def _ssl_options(url: str) -> dict[str, Any] | None:
    """Return the URL's `ssl_*` options; unless they say otherwise the certificate is verified, as kombu would not."""
    parts = _parse(url)
    if not _is_tls(parts):
        return None
    given = {name: value for name, value in parts.items() if name.startswith("ssl_")}
    return {"ssl_cert_reqs": "required"} | given


def _parse(url: str) -> dict[str, Any]:
    parts: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    return parts


def _is_unix(parts: dict[str, Any]) -> bool:
    return parts.get("connection_class") is UnixDomainSocketConnection


def _is_tls(parts: dict[str, Any]) -> bool:
    return parts.get("connection_class") is SSLConnection
