"""Writes the result of a job to a file, completely or not at all."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain, count
from pathlib import Path
from typing import Final
from uuid import uuid4

from pecia.errors import ConfigurationError, InvalidFormatError, InvalidSettingError
from pecia.formats import Format, Result, check, check_patients, known, render
from pecia.handles import PDF_QUALITY
from pecia.sources import Original, at_hand
from pecia_schemas.installing import install_command
from pecia_schemas.media import GROUP, OpenPictures
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.results import Document
from pecia_schemas.settings import SettingsError
from pecia_schemas.tasks import task_type

_QUALITIES: Final = range(1, 96)
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_LONGEST: Final = 120
"""Maximum length of a file name without its suffix, in bytes."""


def stem_of(label: str | None) -> str:
    """Return a file name without suffix for a document's label, valid on all file systems; empty without a label."""
    name = Path(label or "").stem.strip(". ")
    return _UNSAFE.sub("_", name).encode(errors="replace")[:_LONGEST].decode(errors="ignore")


class Stems:
    """Unique file names, ignoring case: a name that is taken gets a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def add(self, stem: str) -> str:
        """Reserve and return the name, with a number if it is taken."""
        numbered = (f"{stem}-{number}" for number in count(2))
        chosen = next(name for name in chain([stem], numbered) if name.casefold() not in self._taken)
        self._taken.add(chosen.casefold())
        return chosen


Draw = Callable[[Document, Path], None]
"""Function that writes a result with its pages' pictures to a file."""


def form_of(
    kind: str,
    path: Path,
    format: Format | str | None,  # noqa: A002  as `formats.render` has it
    quality: int = PDF_QUALITY,
) -> Format:
    """Return the output format: the named one, or else that of the file's suffix.

    Raises `InvalidFormatError` before the job is waited for, if results of this kind do not have the format or the
    quality is out of range.
    """
    form = Format.of(path) if format is None else known(format)
    check(form, task_type(kind).result_type)
    if form.is_binary and quality not in _QUALITIES:
        raise InvalidFormatError("The quality of pictures must be a number from 1 to 95.")
    return form


def write(result: Result, form: Format, target: Path) -> None:
    """Write a result in a text format, atomically. Raises `OSError`."""
    content = render(result, form)
    with replacing(target) as file:
        file.write_text(content, encoding="utf-8", newline="")


def write_bytes(content: bytes, _result: Result, target: Path) -> None:
    """Write a rendered result, atomically. Raises `OSError`."""
    with replacing(target) as file:
        file.write_bytes(content)


def write_with_pictures(
    original: Original,
    payloads: PayloadStore,
    form: Format,
    document: Document,
    target: Path,
    *,
    quality: int,
) -> None:
    """Write a searchable PDF or a facsimile, atomically.

    Raises `DocumentGoneError` if the document was erased, `OSError` if the file cannot be written, and the errors of
    `check_patients`.
    """
    check_patients(document, form)
    open_pictures = page_pictures(form)
    writing = import_module(f"pecia.formats.{form}")
    with at_hand(original, payloads) as path, replacing(target) as file:
        try:
            with open_pictures(path, password=original.password, quality=quality) as pictures:
                writing.write(document, pictures, file)
        except SettingsError as error:
            raise InvalidSettingError(str(error)) from None
        except ChildProcessError:
            raise ConfigurationError(
                "The process that renders pages does not start: check PECIA_DECODE_MEMORY_BYTES, and that pecia[pdf] "
                "is installed completely."
            ) from None


def page_pictures(form: Format = Format.FACSIMILE) -> OpenPictures:
    """Return the function that renders pages. Raises `ConfigurationError` if a package for this format is missing."""
    try:
        import_module(f"pecia.formats.{form}")  # `pecia.formats.pdf` needs pecia[pdf]
        opening: OpenPictures = next(iter(entry_points(group=GROUP))).load()
    except (StopIteration, ImportError):
        raise ConfigurationError(
            "This format needs the pages' pictures, which the light client cannot render: "
            f"{install_command('pdf')}, or take the result as hocr."
        ) from None
    return opening


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path beside the target; the file written there takes its place at the end, complete or not at all."""
    target = target.resolve()
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{target} is not a file")
    # Others may save to the same target at the same time.
    partial = target.with_name(f".{uuid4().hex}.partial")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
