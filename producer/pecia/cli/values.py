"""Values of options: text in, what the client understands out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pecia_schemas import storable
from pecia_schemas.media import PageRanges
from pecia_schemas.states import as_prefix

if TYPE_CHECKING:
    from pecia_schemas.tasks import Preparation

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+)([smhdw])")


def ids(words: Sequence[str]) -> list[str]:
    """Return the ids that were typed, whole or how they begin, or that standard input has if the word is `-`."""
    typed = [id_ for word in words for id_ in (sys.stdin.read().split() if word == "-" else [word])]
    return [_id(word) for word in typed]


def _id(word: str) -> str:
    if as_prefix(word) is None:
        raise typer.BadParameter(
            f"'{word}' is no UUID, as a job's id is, nor how one begins", param_hint="ID"
        )
    return word


def metadata(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return `key=value` options as a mapping."""
    found = [pair.partition("=") for pair in pairs or ()]
    if any(not (key and sign) for key, sign, _ in found):
        raise typer.BadParameter("metadata reads key=value", param_hint="--metadata")
    return {key: value for key, _, value in found}


def language(value: str | None) -> str | None:
    """Return a language as tasks name it."""
    if value is not None and not re.fullmatch("[a-z]{2}", value):
        raise typer.BadParameter("write a language as two letters, such as en", param_hint="--language")
    return value


def pages(value: str | None) -> str | None:
    """Return pages as tasks name them."""
    try:
        return value and str(PageRanges.parse(value))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--pages") from None


def preparation(value: str | None) -> tuple[Preparation, ...] | None:
    """Return the steps that `orient,deskew` names; none of them for `none`."""
    from pecia_schemas.tasks import Preparation  # noqa: PLC0415  slow to load

    if value is None:
        return None
    try:
        return tuple(Preparation(step.strip()) for step in value.split(",")) if value != "none" else ()
    except ValueError:
        steps = ", ".join(Preparation)
        raise typer.BadParameter(f"the steps are {steps}; or write none", param_hint="--prepare") from None


def password(file: Path | None, *, ask: bool) -> str | None:
    """Return the first line of a file, or what a person types unseen: a command line is seen by others."""
    if file is not None:
        return next(iter(_text(file, "--password-file").splitlines()), None)
    return _typed_password() if ask else None


def instructions(file: Path | None) -> str | None:
    """Return what a file tells the model about each page."""
    if file is None:
        return None
    text = _text(file, "--instructions")
    if not text.strip() or len(text) > storable.INSTRUCTIONS:
        raise typer.BadParameter(
            f"the file holds 1 to {storable.INSTRUCTIONS:,} characters", param_hint="--instructions"
        )
    return text


def _text(file: Path, option: str) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(
            "the file holds no text in UTF-8 that may be read", param_hint=option
        ) from None


def _typed_password() -> str:
    try:
        typed: str = typer.prompt("Password", hide_input=True, err=True)
    except typer.Abort:  # Ctrl-C, Ctrl-D, or no terminal
        typer.echo(err=True)
        raise typer.BadParameter(
            "no password was typed; --password-file reads it from a file", param_hint="--password"
        ) from None
    return typed


def seconds(value: float | None, option: str) -> timedelta | None:
    """Return a length of time; None for none."""
    try:
        return timedelta(seconds=value) if value else None
    except OverflowError:
        raise typer.BadParameter("that is longer than any video", param_hint=option) from None


def json_object(file: Path | None, option: str) -> dict[str, Any] | None:
    """Return the object that a file holds as JSON."""
    if file is None:
        return None
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter("the file holds no JSON object", param_hint=option)
    return value


def since(value: str | None) -> datetime | timedelta | None:
    """Return what `--since` says."""
    return moment(value, "--since")


def moment(value: str | None, option: str) -> datetime | timedelta | None:
    """Return a distance (`30m`, `2h`, `7d`) or a point in time (ISO 8601, UTC if it says nothing else)."""
    if value is None:
        return None
    try:
        if ago := _AGO.fullmatch(value):
            return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        when = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise typer.BadParameter("write 30m, 2h, 7d or 2026-01-31", param_hint=option) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
