"""Why a server does not let us in, in one sentence: what waiting does not mend, unlike a server that is away.

Names hosts and settings, never an account or a password.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg

from pecia_schemas.connecting import Verdict, name_of, parameters_of, verdict_on

_NO_RIGHTS = "42501"

_OTHER_NAME = "shows a certificate for another name: connect by the name that it bears."
_UNTRUSTED = (
    "shows a certificate that no authority we trust has signed: name the authority by ssl_ca_certs in"
    " {setting}."
)
# X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OF_CERTIFICATES = {10: "shows a certificate that has expired: renew it.", 62: _OTHER_NAME, 64: _OTHER_NAME}

_OF_POSTGRES = (
    # What libpq says, and what it means. It has no codes for what happens before a session.
    ("password authentication failed", "refuses the account or its password: correct {setting}."),
    ("no password supplied", "asks for a password: write one into {setting}."),
    (
        "no pg_hba.conf entry",
        "admits no such account from here, or not without TLS: see its pg_hba.conf, and {setting}.",
    ),
    ("does not match host name", _OTHER_NAME),
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
    said, parts = _said_by_redis(error, encrypted=url.startswith("rediss://")), urlsplit(url)
    where = parts.path if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]  # without the account
    return said and f"Redis at {where} {said.format(setting='PECIA_REDIS_URL')}"


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
            # What the server or the driver says of itself: of no statement, for it is no statement's fault.
            said = error if isinstance(error, psycopg.Error) else getattr(error, "orig", None) or name
            reason = (str(said).splitlines() or [""])[0].strip()
            advice = "start it, wait, or correct PECIA_DATABASE_URL."
            return of_postgres(error, url) or f"{where} does not do its work now ({reason}): {advice}"
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


def _said_by_redis(error: BaseException, *, encrypted: bool) -> str | None:
    from redis.exceptions import AuthenticationError, NoPermissionError  # noqa: PLC0415  slow to load

    for cause in _causes(error):
        if isinstance(cause, AuthenticationError):
            return "refuses the account or its password: correct {setting}."
        if isinstance(cause, NoPermissionError):
            return "does not let the account do what Pecia does: give it the ACL of docs/security.md."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _OF_CERTIFICATES.get(cause.verify_code, _UNTRUSTED)
        if isinstance(cause, ssl.SSLError):
            return "speaks no TLS that we speak: see tls-port in its configuration, and {setting}."
        if isinstance(cause, FileNotFoundError) and encrypted:
            return "is to be verified by a file that is not there: correct ssl_ca_certs in {setting}."
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, SQLAlchemy's driver error included."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _postgres_host(url: str) -> str:
    parts = parameters_of(url)
    port, database = parts.get("port"), parts.get("dbname", "default")
    return f"{parts.get('host', 'the default socket')}{f':{port}' if port else ''}, database {database}"
