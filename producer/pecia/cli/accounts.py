"""`pecia env`, `access`, `usage`, `audit` and `purge`: connection variables, gateway keys, usage, audit and erasure."""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, BadParameter, Option

from pecia.accounts import AccessKey, Scope
from pecia.cli import output, values
from pecia.cli.endings import Ending
from pecia.client import Client
from pecia.configuration import resolve
from pecia.records import DocumentFate, Erasure, UsageFigures
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane

_HEADINGS = ("id", "tenant", "name", "state", "may", "lanes", "pages a day", "in flight")


def variables_of(settings: ClientSettings) -> dict[str, str]:
    """Return the environment variables with the addresses of a fleet's stores."""
    return {
        "PECIA_DATABASE_URL": settings.database_url.get_secret_value(),
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_PAYLOAD_URL": settings.payload_url,
    }


def env(
    *,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object instead of shell lines.")] = False,
) -> None:
    """Print the variables that other programs need to reach this fleet, such as `celery -A pecia_workers.app`.

    They contain the stores' passwords: pass them to a shell, never to a log. With several fleets on this machine,
    select one by `--home` before the verb, or by PECIA_HOME.

    Example: `eval "$(pecia env)"`
    """
    variables = variables_of(resolve())
    if as_json:
        typer.echo(json.dumps(variables))
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


access = typer.Typer(no_args_is_help=True)


@access.command("create")
def create(
    name: Annotated[str, Argument(help="Name of the key: the person or program that uses it.")],
    *,
    tenant: Annotated[str, Option(help="Tenant whose jobs the key sees, and no others.")],
    scope: Annotated[
        list[Scope] | None, Option(help="What the key allows; may be repeated. Default: submit and read.")
    ] = None,
    lane: Annotated[
        list[Lane] | None, Option(help="Lane that it may submit to; may be repeated. Default: all.")
    ] = None,
    pages_per_day: Annotated[int | None, Option(min=1, help="Most pages in 24 hours.")] = None,
    pages_in_flight: Annotated[int | None, Option(min=1, help="Most pages waiting or being read.")] = None,
    expires: Annotated[str | None, Option(metavar="WHEN", help="When it ends: in 30d, or a date.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Make a key of the gateway. It is printed once: hand it to its user.

    Example: `pecia access create intake --tenant north-clinic --scope submit --scope read --pages-per-day 10000`
    """
    with Client() as client:
        key, shown = client.add_key(
            tenant,
            name,
            scopes=tuple(scope or (Scope.SUBMIT, Scope.READ)),
            lanes=tuple(lane or Lane),
            pages_per_day=pages_per_day,
            pages_in_flight=pages_in_flight,
            expires=values.moment(expires, "--expires"),
        )
    _show(key, shown, as_json=as_json)


@access.command("rotate")
def rotate(
    key: Annotated[UUID, Argument(metavar="KEY", help="Id of the key, as `pecia access list` shows it.")],
    *,
    overlap: Annotated[
        str, Option(metavar="SPAN", help="How long the former key stays valid: 0s, 30m, 24h or 7d.")
    ] = "7d",
    as_json: output.AsJson = False,
) -> None:
    """Replace a key by a new one with the same rights, which is printed once. The former ends after the overlap.

    Example: `pecia access rotate 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11 --overlap 7d`
    """
    with Client() as client:
        made, shown = client.rotate_key(key, overlap=values.overlap(overlap))
    _show(made, shown, as_json=as_json)
    typer.echo(f"Key {key} ends in {overlap}, or when it would have ended before.", err=True)


def _show(key: AccessKey, shown: str, *, as_json: bool) -> None:
    if as_json:
        output.json_line(key.model_dump(mode="json") | {"key": shown})
        return
    typer.echo(shown)
    typer.echo(f"Key {key.id} of {key.client}, shown this once.", err=True)


@access.command("list")
def list_keys(
    *,
    tenant: Annotated[str | None, Option(help="Only this tenant's.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Show all keys, ended ones too, and how much of its limits each has used.

    Example: `pecia access list --tenant north-clinic`
    """
    with Client() as client:
        found = client.keys(tenant)
    if as_json:
        for key, taken in found:
            output.json_line(key.model_dump(mode="json") | {"taken": taken})
        return
    rows: list[Sequence[object]] = []
    for key, taken in found:
        state = "revoked" if key.revoked_at else "valid" if key.is_valid else "expired"
        limited = ((taken.pages_of_day, key.pages_per_day), (taken.pages_in_flight, key.pages_in_flight))
        limits = (f"{pages:,}" if limit is None else f"{pages:,} of {limit:,}" for pages, limit in limited)
        may, lanes = ", ".join(key.scopes), ", ".join(key.lanes)
        rows.append((key.id, key.tenant, key.name, state, may, lanes, *limits))
    typer.echo(output.fitting(_HEADINGS, rows, spare=_HEADINGS[:2:-1]))


@access.command("revoke")
def revoke(
    keys: Annotated[
        list[UUID], Argument(metavar="KEY...", help="Key ids, as `pecia access list` shows them.")
    ],
) -> None:
    """Revoke keys. They are refused within seconds; jobs that they submitted go on.

    Example: `pecia access revoke 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11`
    """
    with Client() as client:
        for key in keys:
            client.revoke_key(key)


_FATES = {
    DocumentFate.SHARED: "share their document with other jobs: it stays until those are purged too",
    DocumentFate.PENDING: "have a document that the payload store could not delete yet: upkeep deletes it",
}

_Jobs = Annotated[list[UUID] | None, Option(metavar="ID", help="Only this job; may be repeated.")]


def purge(
    *,
    job: _Jobs = None,
    before: Annotated[
        str | None, Option(metavar="WHEN", help="Only jobs submitted before: 7d ago, or a date.")
    ] = None,
    metadata: values.OnlyWith = None,
    reason: Annotated[str | None, Option(help="Kept in the audit log: nothing of a document.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be erased.")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: output.AsJson = False,
) -> None:
    """Erase documents, results, metadata and callbacks of jobs now and for good; running jobs are cancelled.

    Example: `pecia purge --metadata patient=4711 --dry-run`
    """
    with Client() as client:
        found = client.purge(
            job, before=values.moment(before, "--before"), metadata=values.metadata(metadata), dry_run=True
        )
        if found and not dry_run:
            if not yes and not sys.stdin.isatty():
                raise BadParameter("there is no terminal to confirm on: add --yes", param_hint="--yes")
            try:
                sure = yes or typer.confirm(f"Erase {_sum(found)} for good?", err=True)
            except typer.Abort:
                sure = False
            if not sure:
                raise typer.Exit(Ending.FAILED)
            found = client.purge([one.job_id for one in found], reason=reason)
    if as_json:
        output.json_lines(found)
        return
    typer.echo(f"{'Would erase' if dry_run else 'Erased'} {_sum(found)}.")
    for fate, sentence in _FATES.items():
        if number := sum(one.document is fate for one in found):
            typer.echo(f"{number:,} of them {sentence}.")


def _sum(found: Sequence[Erasure]) -> str:
    results, deliveries = (sum(getattr(one, name) for one in found) for name in ("results", "deliveries"))
    held = f"{output.counted(results, 'result')} and {output.counted(deliveries, 'callback')}"
    return f"{output.counted(len(found), 'job')} with {held}"


def audit(
    *,
    job: Annotated[UUID | None, Option(metavar="ID", help="Only about this job.")] = None,
    client: Annotated[str | None, Option(metavar="NAME", help="Only what this client did.")] = None,
    since: Annotated[str | None, Option(metavar="WHEN", help="Since: 30m, 2h, 7d or a date.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Show who read and erased results, newest first.

    Example: `pecia audit --since 7d --json`
    """
    with Client() as reader:
        entries = reader.audit(job=job, client=client, since=values.moment(since))
        if as_json:
            output.json_lines(entries)
            return
        rows: list[Sequence[object]] = []
        for entry in entries:
            counts = ", ".join(f"{number} {name}" for name, number in entry.counts.items() if number)
            details = "; ".join(filter(None, [counts, entry.reason]))
            rows.append((entry.at, entry.actor, entry.action, entry.job_id, details))
    typer.echo(output.fitting(("when", "who", "what", "job", "details"), rows))


_COLUMNS = (
    *("jobs", "parts", "pages", "segments", "reused"),
    *("prompt", "image", "cached", "output", "wasted", "saved"),
    *("engine s", "queue s p50/p95", "first token s p50/p95"),
)
_SPARE = ("first token s p50/p95", "image", "saved", "segments", "cached", "wasted", "reused", "parts")
"""Columns that are left out on a narrow terminal, the first one first."""


def usage(
    *,
    since: Annotated[
        str, Option(metavar="WHEN", help="Parts that ended since: 30m, 2h, 7d or a date.")
    ] = "7d",
    by: Annotated[
        str | None,
        Option(metavar="NAME", help="Group by document_type, kind, lane, engine, tenant or metadata:KEY."),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the usage in tokens and seconds, including discarded attempts.

    Example: `pecia usage --since 7d --by document_type`
    """
    with Client() as client:
        found = client.usage(since=values.moment(since), by=by)
    if as_json:
        output.json_line(found)
        return
    rows = [("-" if group.name is None else group.name, *_cells(group)) for group in found.groups]
    rows.append(("all", *_cells(found.total)))
    if by is None:
        width = max(map(len, _COLUMNS))
        typer.echo(
            "\n".join(f" {name:{width}}  {cell}" for name, cell in zip(_COLUMNS, rows[0][1:], strict=True))
        )
        return
    table = output.fitting((by, *_COLUMNS), rows, spare=_SPARE, right=_COLUMNS)
    typer.echo(table)
    if left_out := [name for name in _SPARE if name not in table.splitlines()[1]]:
        typer.echo(f" No room for {', '.join(left_out)}: --json has all.")


def _cells(figures: UsageFigures) -> list[str]:
    tokens = figures.tokens
    counts = (figures.jobs, figures.parts, figures.pages, figures.segments, figures.reused)
    spent = (tokens.prompt, tokens.image, tokens.cached, tokens.output, tokens.wasted, figures.saved)
    waits = (
        f"{one.p50:.2f} / {one.p95:.2f}" if one else "-" for one in (figures.queued_s, figures.first_token_s)
    )
    return [*(f"{count:,}" for count in (*counts, *spent)), f"{figures.engine_s:,.1f}", *waits]
