"""Why a server does not let us in, in one sentence: what waiting does not mend, unlike a server that is away.

Names hosts and settings, never an account or a password.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg

from pecia_schemas.connecting import Verdict, name_of, parameters_of, verdict_on

_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_NO_RIGHTS = "42501"
_OTHER_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

_OF_POSTGRES = (
    # What libpq says, and what it means. It has no codes for what happens before a session.
    ("password authentication failed", "refuses the account or its password: correct {setting}."),
    ("no password supplied", "asks for a password: write one into {setting}."),
    (
        "no pg_hba.conf entry",
        "admits no such account from here, or not without TLS: see its pg_hba.conf, and {setting}.",
    ),
    ("does not match host name", "shows a certificate for another name: connect by the name that it bears."),
    (
        "certificate verify failed",
        "shows a certificate that has expired or is signed by no trusted authority: renew it, or correct sslrootcert.",
    ),
    (
        "root certificate file",
        "is to be verified by an authority whose file is not there: correct sslrootcert in {setting}.",
    ),
    ("server does not support SSL", "speaks no TLS: let it, or correct sslmode in {setting}."),
)


def of_redis(error: BaseException, url: str) -> str | None:
    """Return why Redis refuses us, None if it is away or something else is the matter."""
    said = _said_by_redis(error, encrypted=url.startswith("rediss://"))
    return said and f"Redis at {_redis_host(url)} {said.format(setting='PECIA_REDIS_URL')}"


def of_postgres(error: BaseException, url: str) -> str | None:
    """Return why Postgres refuses us, None if it is away or something else is the matter."""
    text = " ".join(str(cause) for cause in _causes(error) if type(cause).__module__.startswith("psycopg"))
    said = next((said for sign, said in _OF_POSTGRES if sign in text), None)
    return said and f"Postgres at {_postgres_host(url)} {said.format(setting='PECIA_DATABASE_URL')}"


def explain(error: BaseException, url: str) -> str:
    """Return what an error of Postgres means and what to do, in one sentence that quotes nothing of a statement."""
    where, name = f"Postgres at {_postgres_host(url)}", name_of(error)
    match verdict_on(error):
        case Verdict.TRANSIENT:
            advice = "start it, wait, or correct PECIA_DATABASE_URL."
            return of_postgres(error, url) or f"{where} does not do its work now ({_reason(error)}): {advice}"
        case Verdict.FAULT if name == _NO_RIGHTS:
            return (
                f"{where} does not let the account do what Pecia does: grant it what docs/security.md says."
            )
        case Verdict.FAULT:
            return f"{where} does not hold this version's tables ({name}): run `pecia migrate`."
    return (
        f"{where} refuses what is to be written ({name}): a value is too long or too large, or none that it can hold. "
        "Change it; if it should fit, please report this with the code."
    )


def _reason(error: BaseException) -> str:
    """Return what the server or the driver says of itself: of no statement, for it is no statement's fault."""
    said = error if isinstance(error, psycopg.Error) else getattr(error, "orig", None) or name_of(error)
    return (str(said).splitlines() or [""])[0].strip()


def _said_by_redis(error: BaseException, *, encrypted: bool) -> str | None:
    from redis.exceptions import AuthenticationError, NoPermissionError  # noqa: PLC0415  slow to load

    for cause in _causes(error):
        if isinstance(cause, AuthenticationError):
            return "refuses the account or its password: correct {setting}."
        if isinstance(cause, NoPermissionError):
            return "does not let the account do what Pecia does: give it the ACL of docs/security.md."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _said_of_certificate(cause.verify_code)
        if isinstance(cause, ssl.SSLError):
            return "speaks no TLS that we speak: see tls-port in its configuration, and {setting}."
        if isinstance(cause, FileNotFoundError) and encrypted:
            return "is to be verified by a file that is not there: correct ssl_ca_certs in {setting}."
    return None


def _said_of_certificate(code: int) -> str:
    if code == _EXPIRED:
        return "shows a certificate that has expired: renew it."
    if code in _OTHER_NAMES:
        return "shows a certificate for another name: connect by the name that it bears."
    return "shows a certificate that no authority we trust has signed: name the authority by ssl_ca_certs in {setting}."


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, SQLAlchemy's driver error included."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _redis_host(url: str) -> str:
    """Return where the server is, without the account."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]


def _postgres_host(url: str) -> str:
    parts = parameters_of(url)
    port, database = parts.get("port"), parts.get("dbname", "default")
    return f"{parts.get('host', 'the default socket')}{f':{port}' if port else ''}, database {database}"
