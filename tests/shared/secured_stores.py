"""Redis and Postgres as docs/security.md sets them up: behind TLS, with accounts that may do what they need."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.errors import DuplicateObject
from redis import Redis

from pecia_workers.local.servers import EmbeddedPostgres, EmbeddedRedis
from tests.shared.tls_servers import Authority, TlsEndpoint

PASSWORDS = {"fleet": "Wolverhampton-1", "client": "Wolverhampton-2"}
_PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def snippet(language: str) -> str:
    """The page's first block in a language, with this module's passwords."""
    found = re.search(rf"```{language}\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found, f"docs/security.md has no {language}"
    text = found[1]
    for account, password in PASSWORDS.items():
        text = text.replace(f"{account.upper()}-PASSWORD", password)
    return text


@dataclass(frozen=True)
class SecuredStores:
    """How to reach two servers, and how not to."""

    authority: Authority
    stranger: Authority
    """One that signed nothing."""
    admin: Redis
    """Past all doors."""
    ports: Mapping[str, int]
    database: str

    @property
    def denied(self) -> set[str]:
        """What Redis denied to anybody, but for `client`, by which redis-py introduces itself."""
        log: Any = self.admin.acl_log()
        return {entry["object"] for entry in log} - {"client"}

    def redis_url(
        self,
        account: str = "fleet",
        password: str = "",
        *,
        door: str = "",
        trust: Authority | None = None,
        options: str = "",
    ) -> str:
        """An address of Redis; `door` is `expired` or `elsewhere` for one that shows another certificate."""
        trusted = f"?ssl_ca_certs={(trust or self.authority).path}"
        port = self.ports[f"redis{door}"]
        return f"rediss://{account}:{password or PASSWORDS[account]}@localhost:{port}/0{options or trusted}"

    def database_url(self, password: str = "", *, door: str = "", trust: Authority | None = None) -> str:
        options = f"sslmode=verify-full&sslrootcert={(trust or self.authority).path}"
        port = self.ports[f"postgres{door}"]
        return (
            f"postgresql://fleet:{password or PASSWORDS['fleet']}@localhost:{port}/{self.database}?{options}"
        )


@contextmanager
def secured(
    directory: Path, redis: EmbeddedRedis, postgres: EmbeddedPostgres, database_url: str
) -> Iterator[SecuredStores]:
    """Lock both servers, the database being migrated, and stand TLS in front of them."""
    authority = Authority(directory)
    doors = {
        "": authority.context(),
        "expired": authority.context(expired=True),
        "elsewhere": authority.context("elsewhere.example"),
    }
    sockets = {"redis": redis.socket, "postgres": postgres.sockets / ".s.PGSQL.5432"}
    _lock_postgres(postgres, database_url)
    with ExitStack() as stack:
        ports = {
            f"{name}{door}": stack.enter_context(
                TlsEndpoint(socket, context, postgres=name == "postgres").serving()
            )
            for name, socket in sockets.items()
            for door, context in doors.items()
        }
        yield SecuredStores(
            authority=authority,
            stranger=Authority(directory, "stranger"),
            admin=_lock_redis(redis),
            ports=ports,
            database=urlsplit(database_url).path.lstrip("/"),
        )


def _lock_redis(server: EmbeddedRedis) -> Redis:
    """Set the accounts of the page; return one of the test's own that is no account of the page."""
    admin = Redis(unix_socket_path=str(server.socket), username="test", password="test")
    with Redis(unix_socket_path=str(server.socket)) as opening:
        opening.execute_command("ACL", "SETUSER", "test", "on", ">test", "allkeys", "allchannels", "+@all")
    for line in snippet("text").splitlines():
        admin.execute_command("ACL", "SETUSER", *line.split()[1:])  # type: ignore[no-untyped-call]
    return admin


def _lock_postgres(server: EmbeddedPostgres, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in snippet("sql").split(";"):
            if statement.strip():
                with suppress(DuplicateObject):
                    connection.execute(statement.encode())
        rules = server.data / "pg_hba.conf"
        asked = "local all fleet scram-sha-256\n"
        if asked not in rules.read_text():
            rules.write_text(asked + rules.read_text())
            connection.execute("SELECT pg_reload_conf()")
