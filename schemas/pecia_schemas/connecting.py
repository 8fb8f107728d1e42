"""Connections to Postgres by psycopg, with or without SQLAlchemy: URLs, bounded waits, and the meaning of errors.

The class of an exception is ambiguous: psycopg and SQLAlchemy raise `OperationalError` for a server that restarts and
for a row that is too long for an index, and `InternalError` for a server that is read-only for a minute.

Errors that waiting cannot cure, such as a refused account, are explained in a sentence. It names hosts and settings,
never an account or a password.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.pq import TransactionStatus
from pydantic_core import PydanticSerializationError

if TYPE_CHECKING:  # a client that uses only psycopg does not load SQLAlchemy
    from psycopg.abc import PQGen
    from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext

T = TypeVar("T")


class Verdict(Enum):
    """What to do after a statement has failed."""

    TRANSIENT = auto()
    """The same statement can succeed later: it is retried, with backoff."""
    REFUSED = auto()
    """This statement with these values can never succeed; others can."""
    FAULT = auto()
    """The schema or the rights do not fit this version: no statement succeeds until a person corrects them."""


_BY_PREFIX: Final = {
    "08": Verdict.TRANSIENT,  # connection lost
    "25006": Verdict.TRANSIENT,  # read-only: a standby, or a primary that was demoted or is full
    "25P03": Verdict.TRANSIENT,  # idle in a transaction for too long: this process stood still
    "25P04": Verdict.TRANSIENT,  # transaction timeout
    "28": Verdict.TRANSIENT,  # the account was refused: its password is being changed
    "3D": Verdict.TRANSIENT,  # no such database: it is being restored
    "3F": Verdict.FAULT,  # no such schema
    "40": Verdict.TRANSIENT,  # rolled back for another's sake: deadlock, serialization failure
    "42501": Verdict.FAULT,  # insufficient privilege
    "42703": Verdict.FAULT,  # no such column
    "42704": Verdict.FAULT,  # no such type, constraint or index
    "42883": Verdict.FAULT,  # no such function
    "42P01": Verdict.FAULT,  # no such table
    "53": Verdict.TRANSIENT,  # disk full, out of memory, too many connections
    "55006": Verdict.TRANSIENT,  # object in use
    "55P03": Verdict.TRANSIENT,  # lock not available
    "57": Verdict.TRANSIENT,  # statement timeout, shutdown, start
    "58": Verdict.TRANSIENT,  # the server's own disk or files
    "72": Verdict.TRANSIENT,  # snapshot too old
}
"""The longest matching prefix counts. All other codes are refused: 21, 22, 23, the rest of 42, 54, P0, XX …"""

_TOO_LONG: Final = ("25P04", "53200", "53400", "57014")
_IN_DOUBT: Final = ("08", "40003", "57P")
_NOT_THIS_SERVER: Final = ("25006", "25P03", "57P")


def verdict_on(error: BaseException) -> Verdict | None:
    """Return the verdict on an error, or None if it is not from Postgres, the driver or the connection pool."""
    state = sqlstate_of(error)
    if state is not None:
        lengths = range(len(state), 1, -1)
        return next((_BY_PREFIX[state[:n]] for n in lengths if state[:n] in _BY_PREFIX), Verdict.REFUSED)
    match _cause_of(error):
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Verdict.TRANSIENT  # lost, refused or silent, or the server has no free connection
        case psycopg.Error() | UnicodeError() | PydanticSerializationError():
            return Verdict.REFUSED  # the value cannot be encoded, so nothing was sent
    # The pool has no free connection.
    return Verdict.TRANSIENT if _is_of_sqlalchemy(error, "TimeoutError") else None


def is_transient(error: BaseException) -> bool:
    """Return whether the same statement may succeed later."""
    return verdict_on(error) is Verdict.TRANSIENT


def exceeds_limit(error: BaseException) -> bool:
    """Return whether a statement itself took too long or too much memory, so that half of it may succeed.

    A statement that waits for a lock ends earlier, by 55P03.
    """
    return sqlstate_of(error) in _TOO_LONG


def may_be_committed(error: BaseException) -> bool:
    """Return whether the transaction of a transient error may have been committed, because the answer was lost."""
    state = sqlstate_of(error)
    return state is None or state.startswith(_IN_DOUBT)


def ends_connection(error: BaseException) -> bool:
    """Return whether another connection may reach a server without this error."""
    return (sqlstate_of(error) or "").startswith(_NOT_THIS_SERVER)


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE, or None if the error comes from the driver itself or not from Postgres."""
    cause = _cause_of(error)
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None


def name_of(error: BaseException) -> str:
    """Return the SQLSTATE, or the name of the error. Never its text, which quotes data."""
    return sqlstate_of(error) or type(_cause_of(error)).__name__


@contextmanager
def outage_suppressed() -> Iterator[None]:
    """End the block early if Postgres is unavailable."""
    try:
        yield
    except Exception as error:
        if not is_transient(error):
            raise


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the driver's error inside one of SQLAlchemy."""
    cause: BaseException | None = getattr(error, "orig", None)
    return cause if _is_of_sqlalchemy(error, "DBAPIError") else error


def _is_of_sqlalchemy(error: BaseException, name: str) -> bool:
    """Return whether SQLAlchemy raised the error, without loading SQLAlchemy: if it is not loaded, it did not."""
    known = sys.modules.get("sqlalchemy.exc")
    return known is not None and isinstance(error, getattr(known, name))


CONNECT_ARGS = {
    "connect_timeout": 5,
    # These notice a half-open connection within 15 s.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # Behind a pooler each transaction may use another server connection, without the prepared statements.
    "prepare_threshold": None,
}
"""Options of psycopg and libpq for every connection."""
PREPARED_AFTER: Final = 5
"""Runs of a statement on one connection before it is prepared there; planning is half of Postgres's work."""
BACKEND: Final = "SELECT pg_backend_pid()"
"""Query for the backend's number, which a direct connection knows already; a pooler reports another one."""

_INTERVAL_S = 0.1
"""Interval in which psycopg checks the timeout of a wait."""
_BEYOND_S = 0.5
"""Time that the server gets beyond its own limit to report that it was reached."""
_ALIVE_S = 4.0
"""Time in which a connection from the pool must answer the pool's ping; its statements may take longer."""

# Parses like SQLAlchemy, which the fleet uses: it accepts more characters in a password than libpq.
_URL = re.compile(
    r"""
    [\w+]+://
    (?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?
    (?:(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?)?
    (?:/(?P<dbname>[^?]*))?
    (?:\?(?P<query>.*))?
    """,
    re.VERBOSE,
)
_PORT = re.compile(r"(?P<host>.*?)(:(?P<port>\d+))?")


def parameters_of(database_url: str) -> dict[str, str]:
    """Return libpq's parameters in a URL. Raises `ValueError` if it is invalid."""
    if (read := _URL.match(database_url)) is None:
        raise ValueError("not a database URL")
    parts = read.groupdict()
    query, host = parts.pop("query"), parts.pop("ipv6") or parts.pop("host")
    found = {name: unquote(part) for name, part in (parts | {"host": host}).items() if part}
    found |= (parameters := dict(parse_qsl(query or "")))
    if "host" in parameters:  # one, several, or `host=a:1&host=b:2`
        hosts = [_PORT.fullmatch(value) for name, value in parse_qsl(query or "") if name == "host"]
        found["host"] = ",".join(host["host"] for host in hosts if host)
        if any(host and host["port"] for host in hosts):
            found["port"] = ",".join(host["port"] or "" for host in hosts if host)
    return found


def begin_within(timeout: timedelta) -> str:
    """Return SQL that begins a transaction with the server's time limits for statements and for idle time.

    It needs no extra round trip, and leaves no setting on a server connection that a pooler passes on.
    """
    return f"BEGIN; {bounds_of(timeout, 'LOCAL')}"


def bounds_of(timeout: timedelta, scope: Literal["LOCAL", "SESSION"]) -> str:
    """Return SQL that sets these limits for a transaction, or for a session with a direct connection."""
    limit_ms = int(timeout.total_seconds() * 1000)
    return (
        f"SET {scope} statement_timeout = {limit_ms};"
        f" SET {scope} lock_timeout = {limit_ms * 3 // 4};"
        f" SET {scope} idle_in_transaction_session_timeout = {limit_ms}"
    )


class _Bounded:
    """Bounds of a connection's waits for an answer."""

    timeout_s = _ALIVE_S
    fresh_until = 0.0
    """Time, by `time.monotonic()`, until which the last answer counts as proof that the connection lives."""

    def bound_statements(self, timeout: timedelta) -> None:
        """Set the wait to the longest time of a statement on the server."""
        self.timeout_s = timeout.total_seconds() + _BEYOND_S

    def bound_ping(self, timeout: timedelta) -> None:
        """Set the wait to the longest time of the pool's ping."""
        self.timeout_s = min(_ALIVE_S, timeout.total_seconds() + _BEYOND_S)


class BoundedConnection(_Bounded, psycopg.Connection[Any]):
    """A connection that waits for an answer at most `timeout_s`."""

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """Wait for libpq, and close the connection if no answer comes."""
        try:
            return super().wait(gen, interval, timeout or self.timeout_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


class BoundedAsyncConnection(_Bounded, psycopg.AsyncConnection[Any]):
    """Asynchronous counterpart of `BoundedConnection`."""

    async def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:  # noqa: ASYNC109
        """Wait for libpq, and close the connection if no answer comes."""
        try:
            return await super().wait(gen, interval, timeout or self.timeout_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


def _close_unanswered(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Close a connection on which a statement is still in flight after an error."""
    if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
        connection.pgconn.finish()


def sqlalchemy_url(database_url: str) -> URL:
    """Return the URL with the driver psycopg 3, which serves both synchronous and asynchronous engines."""
    from sqlalchemy import make_url  # noqa: PLC0415  slow to load

    return make_url(database_url).set(drivername="postgresql+psycopg")


def close_after(engine: Engine, timeout: timedelta, *, ping: timedelta | None = None) -> None:
    """Close connections of the engine on which a statement got no answer in time, or a transaction had no statement.

    The pool then replaces connections of the same age or older. The same happens after an error that is specific to the
    server, such as a primary that was demoted. A connection that returns after the engine was disposed of is closed,
    because its pool is no longer in use. Keepalives detect a dead peer; this detects a proxy or firewall that has
    forgotten the connection, and on the server it frees the locks of a client that stopped responding.

    The server's limits are set with the BEGIN of each transaction. A pool that pings sends that BEGIN as its ping,
    because a connection is taken out to begin a transaction. The pool waits for the answer at most four seconds, and at
    most half a second longer than `ping`, or without it `timeout`.
    """
    from sqlalchemy import event  # noqa: PLC0415  slow to load

    begin_bounded = begin_within(timeout)

    def begin(connection: Connection) -> None:
        if _driver(connection.connection).info.transaction_status == TransactionStatus.INTRANS:
            return  # begun by the pool's ping
        # Also if the transaction streams: no server-side cursor may read the result of BEGIN.
        connection.exec_driver_sql(
            begin_bounded, execution_options={"stream_results": False, "yield_per": None}
        )

    def bound_statements(connection: Any, *_: object) -> None:
        _driver(connection).bound_statements(timeout)

    def prepare(connection: Any, record: Any) -> None:
        record.info["pool"] = engine.pool
        driver, cursor = _driver(connection), connection.cursor()
        cursor.execute(BACKEND)
        if cursor.fetchone() == (driver.info.backend_pid,):  # a direct connection
            driver.prepare_threshold = PREPARED_AFTER
        cursor.close()

    def come_back(connection: Any, record: Any) -> None:
        if connection is None:  # it was closed instead
            return
        if record.info["pool"] is not engine.pool:
            record.invalidate()
        else:
            _driver(connection).bound_ping(ping or timeout)

    def leave(context: ExceptionContext) -> None:
        context.is_disconnect |= ends_connection(context.original_exception)

    dialect: Any = engine.dialect
    dialect.do_ping = partial(_ping, begin_bounded)
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "handle_error", leave)
    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    event.listen(engine, "checkout", bound_statements)
    event.listen(engine, "checkin", come_back)


def _connect(dialect: Any, _record: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
    parameters["autocommit"] = True  # psycopg sends no BEGIN itself
    if dialect.is_async:
        parameters["async_creator_fn"] = BoundedAsyncConnection.connect
        return None
    return BoundedConnection.connect(*arguments, **parameters)


def _ping(begin: str, connection: Any) -> bool:
    cursor = connection.cursor()
    cursor.execute(begin)
    cursor.close()
    return True


def _driver(connection: Any) -> Any:
    """Return psycopg's connection inside SQLAlchemy's asynchronous one."""
    return getattr(connection, "driver_connection", connection)


_NO_RIGHTS = "42501"

_OTHER_NAME = "shows a certificate for another name: connect by the name in the certificate."
_UNTRUSTED = (
    "shows a certificate that is signed by no trusted authority: set the authority by ssl_ca_certs in"
    " {setting}."
)
# X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OF_CERTIFICATES = {10: "shows a certificate that has expired: renew it.", 62: _OTHER_NAME, 64: _OTHER_NAME}

_OF_POSTGRES = (
    # Texts of libpq with their explanations. libpq has no codes for errors before a session.
    ("password authentication failed", "refuses the account or its password: correct {setting}."),
    ("no password supplied", "requires a password: add it to {setting}."),
    (
        "no pg_hba.conf entry",
        "does not admit this account from this host, or not without TLS: see its pg_hba.conf, and {setting}.",
    ),
    ("does not match host name", _OTHER_NAME),
    (
        "certificate verify failed",
        "shows a certificate that has expired or is signed by no trusted authority: renew it, or correct sslrootcert.",
    ),
    (
        "root certificate file",
        "cannot be verified, as the file of its authority is missing: correct sslrootcert in {setting}.",
    ),
    ("server does not support SSL", "does not support TLS: enable it, or correct sslmode in {setting}."),
)


def refusal_of_redis(error: BaseException, url: str) -> str | None:
    """Return a sentence that explains why Redis refuses this client; None for an outage or another error."""
    from redis.exceptions import AuthenticationError, NoPermissionError  # noqa: PLC0415  slow to load

    said, parts = None, urlsplit(url)
    for cause in _causes(error):
        match cause:
            case AuthenticationError():
                said = "refuses the account or its password: correct {setting}."
            case NoPermissionError():
                said = "denies the account a right that Pecia needs: give it the ACL of docs/security.md."
            case ssl.SSLCertVerificationError():
                said = _OF_CERTIFICATES.get(cause.verify_code, _UNTRUSTED)
            case ssl.SSLError():
                said = "supports no common TLS version: see tls-port in its configuration, and {setting}."
            case FileNotFoundError() if parts.scheme == "rediss":
                said = "cannot be verified, as the file of its authority is missing: correct ssl_ca_certs in {setting}."
            case _:
                continue
        break
    where = parts.path if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]  # without the account
    return said and f"Redis at {where} {said.format(setting='PECIA_REDIS_URL')}"


def refusal_of_postgres(error: BaseException, url: str) -> str | None:
    """Return a sentence that explains why Postgres refuses this client; None for an outage or another error."""
    text = " ".join(str(cause) for cause in _causes(error) if type(cause).__module__.startswith("psycopg"))
    said = next((said for sign, said in _OF_POSTGRES if sign in text), None)
    return said and f"Postgres at {_postgres_host(url)} {said.format(setting='PECIA_DATABASE_URL')}"


def explain(error: BaseException, url: str) -> str:
    """Return an error's meaning and what to do, in one sentence that quotes nothing of a statement."""
    where, name = f"Postgres at {_postgres_host(url)}", name_of(error)
    match verdict_on(error):
        case Verdict.TRANSIENT:
            # The server's or the driver's text. A transient error is not about a statement, so its text quotes none.
            said = error if isinstance(error, psycopg.Error) else getattr(error, "orig", None) or name
            reason = (str(said).splitlines() or [""])[0].strip()
            advice = "start it, wait, or correct PECIA_DATABASE_URL."
            return refusal_of_postgres(error, url) or f"{where} is unavailable ({reason}): {advice}"
        case Verdict.FAULT if name == _NO_RIGHTS:
            return (
                f"{where} denies the account a right that Pecia needs: grant the rights in docs/security.md."
            )
        case Verdict.FAULT:
            return f"{where} lacks this version's tables ({name}): run `pecia migrate`."
    return (
        f"{where} refuses a value ({name}): it is too long or too large, or cannot be stored. "
        "Change it; if it should fit, please report this with the code."
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, including the driver's error inside one of SQLAlchemy."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _postgres_host(url: str) -> str:
    parts = parameters_of(url)
    port, database = parts.get("port"), parts.get("dbname", "default")
    return f"{parts.get('host', 'the default socket')}{f':{port}' if port else ''}, database {database}"
