"""Parses values of options and arguments, finds input files, and selects jobs."""

from __future__ import annotations

import glob
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast, get_type_hints
from urllib.parse import urlsplit

import typer
from typer import Argument, BadParameter, Option

from pecia.arguments import Which
from pecia.cli import endings
from pecia.client import Client
from pecia.job import JobGroup
from pecia.sources import files_below, natural, sniffed
from pecia_schemas import storable
from pecia_schemas.media import URL_SCHEMES, MediaType, PageRanges
from pecia_schemas.results import Verdict
from pecia_schemas.states import JobState, as_prefix

if TYPE_CHECKING:
    from pecia_schemas.tasks import Preparation

existing_file = partial(Option, metavar="FILE", exists=True, dir_okay=False)
"""An option that takes an existing file."""
_STDIN = "-"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Input:
    """One document or video of the command line."""

    name: str
    source: Path | str | IO[bytes] | Sequence[Path]
    """Source of the task; several paths form one bundle."""
    label: str | None = None
    """Label of the job."""


def bundle_inputs(words: Iterable[str]) -> list[Input]:
    """Return the bundles of a command line: each folder, all pictures together, and each other file is one bundle.

    Pictures are in the natural order of their names. Raises the same errors as `inputs`.
    """
    bundles: list[Input] = []
    pictures: list[Path] = []
    for word in words:
        found = inputs([word], lambda media: not media.is_video)
        paths = [one.source for one in found if isinstance(one.source, Path)]
        if os.path.isdir(word):  # noqa: PTH112  as in `inputs`
            name = Path(word).resolve().name
            bundles.append(Input(word, sorted(paths, key=natural), label_of(name)))
            continue
        singles = {path for path in paths if (media := sniffed(path)) and media.is_single_image}
        pictures += singles
        bundles += [one for one in found if one.source not in singles]
    if pictures:
        pictures.sort(key=natural)
        bundles.append(Input(str(pictures[0]), pictures, label_of(pictures[0].name)))
    return bundles


def inputs(words: Iterable[str], wanted: Callable[[MediaType], bool]) -> list[Input]:
    """Return the inputs that the words of a command line name, in their order.

    A folder yields all files below it whose content is `wanted`, except hidden ones; standard error reports the number
    and the first names of the others. Raises `typer.BadParameter` for a word that names no file.
    """
    found: list[Input] = []
    for word in words:
        if word == _STDIN:
            found.append(Input(_STDIN, sys.stdin.buffer))
        elif word.lower().startswith(URL_SCHEMES):
            found.append(Input(word, word, label_of(urlsplit(word).path.rpartition("/")[2])))
        elif os.path.isdir(word):  # noqa: PTH112  Path's raises for a folder that may not be entered and for long words
            found += _of_folder(Path(word), wanted)
        elif os.path.exists(word):  # noqa: PTH110  as above
            found.append(_of_file(Path(word)))
        else:  # a pattern that the shell did not expand: quoted, or with too many matches
            matches = [path for path in sorted(glob.glob(word, recursive=True)) if Path(path).is_file()]  # noqa: PTH207  as shells do
            if not matches:
                what = "no file matches" if glob.has_magic(word) else "there is no file"
                raise BadParameter(f"{what} '{word}'", param_hint="FILE")
            found += (_of_file(Path(path)) for path in matches)
    if sum(one.name == _STDIN for one in found) > 1:
        raise BadParameter("standard input can be read only once", param_hint="FILE")
    return found


def label_of(name: str) -> str | None:
    """Return a name as a valid label: invalid characters are replaced, and a long name keeps only its end."""
    return os.fsencode(name).decode("utf-8", "replace")[-storable.LABEL :] or None


def _of_file(path: Path) -> Input:
    if not os.access(path, os.R_OK):
        raise BadParameter(f"'{path}' cannot be read: check its permissions", param_hint="FILE")
    return Input(str(path), path, label_of(path.name))


def _of_folder(folder: Path, wanted: Callable[[MediaType], bool]) -> Iterator[Input]:
    taken = 0
    passed_over: list[str] = []
    for path in files_below(folder):
        if (media := sniffed(path)) is not None and wanted(media):
            taken += 1
            yield Input(str(path), path, label_of(str(path.relative_to(folder))))
        else:
            passed_over.append(str(path.relative_to(folder)))
    if not taken:
        raise BadParameter(f"'{folder}' contains no file that this command accepts", param_hint="FILE")
    if passed_over:
        named = ", ".join(passed_over[:_NAMED]) + (", …" if len(passed_over) > _NAMED else "")
        endings.complain(f"{folder}: skipped {len(passed_over)} of another kind: {named}")


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb for Typer, with an option for each field in place of a parameter that is a dataclass."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(verb).parameters.values():
        if group := groups.get(one.name):
            types = get_type_hints(group, include_extras=True)
            parameters += [
                one.replace(name=field.name, default=field.default, annotation=types[field.name])
                for field in fields(group)
            ]
        else:
            parameters.append(one.replace(annotation=hints[one.name]))

    @wraps(verb)
    def called(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


InBatch = Annotated[str | None, Option("--batch", metavar="NAME|ID", help="Only jobs of this batch.")]
States = Annotated[list[JobState] | None, Option("--state", help="Only jobs in this state; may be repeated.")]
Metadata = Annotated[
    list[str] | None, Option("--metadata", metavar="KEY=VALUE", help="Only jobs with this metadata.")
]
OnlyWith = Annotated[
    list[str] | None, Option(metavar="KEY=VALUE", help="Only jobs with this metadata; may be repeated.")
]
Timeout = Annotated[float | None, Option(min=0, help="Most seconds to wait; the jobs go on.")]

OPEN = [state for state in JobState if not state.is_terminal]
UNSUCCESSFUL = [state for state in JobState if state.is_terminal and state is not JobState.SUCCEEDED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Options that select jobs."""

    batch: InBatch = None
    state: States = None
    verdict: Annotated[
        list[Verdict] | None,
        Option("--verdict", help="Only jobs with a page of this verdict; may be repeated."),
    ] = None
    metadata: Metadata = None

    def which(self) -> Which:
        """Return the options that are set, as filters of `Client.jobs`."""
        said = Which(batch=self.batch, state=self.state or (), verdict=self.verdict or ())
        said["metadata"] = metadata(self.metadata)
        return cast("Which", {name: value for name, value in said.items() if value not in (None, (), {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs(Filter):
    """Options that select jobs by their ids or by filters."""

    ids: Annotated[
        list[str] | None,
        Argument(metavar="ID", help="Job ids or their beginnings; - reads them from standard input."),
    ] = None

    def __post_init__(self) -> None:
        check(self.ids, self.which())

    def chosen(self, client: Client, state: Sequence[JobState] = ()) -> JobGroup[Any]:
        """Return the selected jobs in the order of ids or submits. `state` applies if the filter names no states."""
        if self.ids:
            return client.group(client.job(job_id) for job_id in ids(self.ids))
        which = self.which()
        if state:
            which.setdefault("state", state)
        group = client.group(list(client.jobs(**which, page_size=500))[::-1])
        if not group:
            endings.complain("no job matches.")
        return group

    @property
    def words(self) -> str:
        """The arguments by which another command selects the same jobs, or empty if no other command can."""
        if self.batch is not None:
            return f"--batch {self.batch}"
        return " ".join(self.ids) if self.ids and "-" not in self.ids else ""


def check(ids: list[str] | None, which: Which) -> None:
    """Raise `typer.BadParameter` unless jobs are selected in exactly one way: by ids or by filters."""
    if bool(ids) == bool(which):
        raise BadParameter(
            "name jobs by their ids, or by --batch, --state, --verdict and --metadata", param_hint="ID"
        )


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+)([smhdw])")


def ids(words: Sequence[str]) -> list[str]:
    """Return the typed ids or their beginnings; `-` reads them from standard input."""
    typed = [id_ for word in words for id_ in (sys.stdin.read().split() if word == "-" else [word])]
    for one in typed:
        if as_prefix(one) is None:
            sentence = f"'{one}' is neither a job id (a UUID) nor the beginning of one"
            raise BadParameter(sentence, param_hint="ID")
    return typed


def metadata(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return `key=value` options as a mapping."""
    found = [pair.partition("=") for pair in pairs or ()]
    if any(not (key and sign) for key, sign, _ in found):
        raise BadParameter("write metadata as KEY=VALUE", param_hint="--metadata")
    return {key: value for key, _, value in found}


def language(value: str | None) -> str | None:
    """Return one or more languages in the form that tasks take, None for auto."""
    if value in (None, "auto"):
        return None
    if not re.fullmatch("[a-z]{2}(,[a-z]{2}){0,7}", value):
        sentence = "write a language as two letters, such as en, several as en,ko,zh, or auto"
        raise BadParameter(sentence, param_hint="--language")
    return value


def pages(value: str | None) -> str | None:
    """Return page ranges in the form that tasks take."""
    try:
        return value and str(PageRanges.parse(value))
    except ValueError as error:
        raise BadParameter(str(error), param_hint="--pages") from None


def preparation(value: str | None) -> tuple[Preparation, ...] | None:
    """Return the preparation steps of a list such as `orient,deskew`; empty for `none`."""
    from pecia_schemas.tasks import Preparation  # noqa: PLC0415  slow to load

    if value is None:
        return None
    try:
        return tuple(Preparation(step.strip()) for step in value.split(",")) if value != "none" else ()
    except ValueError:
        steps = ", ".join(Preparation)
        raise BadParameter(f"the steps are {steps}; or write none", param_hint="--prepare") from None


def password(file: Path | None, *, ask: bool) -> str | None:
    """Return the first line of a file, or ask for a password without echo: other users can see a command line."""
    if file is not None:
        return next(iter(_text(file, "--password-file").splitlines()), None)
    try:
        return typer.prompt("Password", hide_input=True, err=True) if ask else None
    except typer.Abort:  # Ctrl-C, Ctrl-D, or no terminal
        typer.echo(err=True)
        raise BadParameter(
            "no password was typed; --password-file reads it from a file", param_hint="--password"
        ) from None


def instructions(file: Path | None) -> str | None:
    """Return the prompt that a file contains."""
    if file is None:
        return None
    text = _text(file, "--instructions")
    if not text.strip() or len(text) > storable.INSTRUCTIONS:
        raise BadParameter(
            f"the file must have 1 to {storable.INSTRUCTIONS:,} characters", param_hint="--instructions"
        )
    return text


def _text(file: Path, option: str) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise BadParameter("the file is not readable UTF-8 text", param_hint=option) from None


def seconds(value: float | None, option: str) -> timedelta | None:
    """Return a duration, or None for None and 0."""
    try:
        return timedelta(seconds=value) if value else None
    except OverflowError:
        raise BadParameter("that is longer than any video", param_hint=option) from None


def json_object(file: Path | None) -> dict[str, Any] | None:
    """Return the JSON object that a file contains."""
    if file is None:
        return None
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise BadParameter("the file contains no JSON object", param_hint="--fields")
    return value


def moment(value: str | None, option: str = "--since") -> datetime | timedelta | None:
    """Return a duration (`30m`, `2h`, `7d`) or a time (ISO 8601, UTC if it names no zone)."""
    if value is None:
        return None
    try:
        if ago := _AGO.fullmatch(value):
            return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        when = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise BadParameter("write 30m, 2h, 7d or 2026-01-31", param_hint=option) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def overlap(value: str) -> timedelta:
    """Return the duration for which a replaced key or secret stays valid."""
    span = moment(value, "--overlap")
    if not isinstance(span, timedelta):
        raise BadParameter("write 30m, 24h or 7d", param_hint="--overlap")
    return span
