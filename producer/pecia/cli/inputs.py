"""What a command is given to work on: files, folders, patterns, addresses, or standard input."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import typer

from pecia.cli import endings
from pecia_schemas import storable
from pecia_schemas.media import HEAD_BYTES, URL_SCHEMES, MediaType, sniff

_STDIN = "-"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Input:
    """One document or video, and what the caller calls it."""

    name: str
    source: Path | str | IO[bytes]
    label: str | None = None
    """What its job is called."""


def inputs(words: Iterable[str], wanted: Callable[[MediaType], bool]) -> list[Input]:
    """Return what the words of a command line stand for, in their order.

    Of folders, searched to the bottom, only files whose content is `wanted` are taken, none that is hidden; of the
    others standard error says how many there are, and names the first. Raises `typer.BadParameter` for a word
    that stands for nothing.
    """
    found = [one for word in words for one in _of(word, wanted)]
    if sum(one.name == _STDIN for one in found) > 1:
        raise typer.BadParameter("standard input can be read once", param_hint="FILE")
    return found


def _of(word: str, wanted: Callable[[MediaType], bool]) -> Iterator[Input]:
    if word == _STDIN:
        yield Input(_STDIN, sys.stdin.buffer)
    elif word.lower().startswith(URL_SCHEMES):
        yield Input(word, word, label_of(urlsplit(word).path.rpartition("/")[2]))
    elif os.path.isdir(word):  # noqa: PTH112  Path's raises for a folder that may not be entered and for long words
        yield from _of_folder(Path(word), wanted)
    elif os.path.exists(word):  # noqa: PTH110  as above
        yield _of_file(Path(word))
    else:
        yield from _of_pattern(word)


def label_of(name: str) -> str | None:
    """Return a name as a label holds it: what is no text in it is replaced, and of a long one the end is kept."""
    return os.fsencode(name).decode("utf-8", "replace")[-storable.LABEL :] or None


def _of_file(path: Path) -> Input:
    if not os.access(path, os.R_OK):
        raise typer.BadParameter(f"'{path}' may not be read: check its permissions", param_hint="FILE")
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
        raise typer.BadParameter(f"nothing in '{folder}' is of a kind for this", param_hint="FILE")
    if passed_over:
        named = ", ".join(passed_over[:_NAMED]) + (", …" if len(passed_over) > _NAMED else "")
        endings.complain(f"{folder}: passed over {len(passed_over)} of another kind: {named}")


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those below it, sorted, without hidden ones."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(names) if not name.startswith("."))


def sniffed(path: Path) -> MediaType | None:
    """Return what a file is by its content; None if it is nothing that Pecia reads, or cannot be read."""
    try:
        if not path.is_file():  # a pipe would wait for a writer
            return None
        with path.open("rb") as file:
            return sniff(file.read(HEAD_BYTES))
    except OSError:
        return None


def _of_pattern(word: str) -> Iterator[Input]:
    """Match a pattern that the shell has left to us: quoted, or with too many matches for a command line."""
    matches = [path for path in sorted(glob.glob(word, recursive=True)) if Path(path).is_file()]  # noqa: PTH207  as shells do
    if not matches:
        what = "no file matches" if glob.has_magic(word) else "there is no file"
        raise typer.BadParameter(f"{what} '{word}'", param_hint="FILE")
    yield from (_of_file(Path(path)) for path in matches)
