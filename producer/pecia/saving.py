"""Results as files. A job's handle does the waiting and the SQL for itself; the rest is here, for both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final
from uuid import uuid4

from pecia.errors import ConfigurationError, InvalidFormatError, InvalidSettingError
from pecia.formats import Format, Result, check, known, render
from pecia.handles import PDF_QUALITY
from pecia.sources import Original, at_hand
from pecia_schemas.media import GROUP, OpenPictures
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.results import Document
from pecia_schemas.settings import SettingsError
from pecia_schemas.tasks import task_type

_QUALITIES: Final = range(1, 96)


def form_of(
    kind: str,
    path: Path,
    format: Format | str | None,  # noqa: A002  as `formats.render` has it
    quality: int = PDF_QUALITY,
) -> Format:
    """Return the form to write: the one that is named, else that of the file's suffix.

    Raises `InvalidFormatError` if results of this kind of job do not have it, or pictures that quality,
    `ConfigurationError` if it needs something that is not installed: before anybody waits for the job.
    """
    form = Format.of(path) if format is None else known(format)
    check(form, task_type(kind).result_type)
    if form.is_binary:
        page_pictures(form)
        if quality not in _QUALITIES:
            raise InvalidFormatError("The quality of pictures is a number from 1 to 95.")
    return form


def write(result: Result, form: Format, target: Path) -> None:
    """Write a result in a form that is text. The file is whole or as it was before. Raises `OSError`."""
    content = render(result, form)
    with _replacing(target) as file:
        file.write_text(content, encoding="utf-8", newline="")


def write_with_pictures(
    document: Document,
    original: Original,
    payloads: PayloadStore,
    target: Path,
    form: Format,
    *,
    quality: int,
) -> None:
    """Write a searchable PDF or a facsimile. The file is whole or as it was before.

    Raises `DocumentGoneError` if the document is not kept any more, `OSError` if the file cannot be written.
    """
    open_pictures = page_pictures(form)
    writing = import_module(f"pecia.formats.{form}")
    with at_hand(original, payloads) as path, _replacing(target) as file:
        try:
            with open_pictures(path, password=original.password, quality=quality) as pictures:
                writing.write(document, pictures, file)
        except SettingsError as error:
            raise InvalidSettingError(str(error)) from None
        except ChildProcessError:
            raise ConfigurationError(
                "The process that draws the pages does not start: check PECIA_DECODE_MEMORY_BYTES, and that pecia[pdf] "
                "is installed whole."
            ) from None


def page_pictures(form: Format = Format.FACSIMILE) -> OpenPictures:
    """Return what draws pages. Raises `ConfigurationError` if it, or what writes that form, is not installed."""
    try:
        import_module(f"pecia.formats.{form}")  # that of PDFs comes with pecia[pdf]
        opening: OpenPictures = next(iter(entry_points(group=GROUP))).load()
    except (StopIteration, ImportError):
        raise ConfigurationError(
            "This is made of the pages' pictures, which the light client cannot draw: pip install 'pecia[pdf]', "
            "or take the result as hocr."
        ) from None
    return opening


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a file that takes the target's place if all goes well."""
    target = target.resolve()
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{target} is no file")
    # Others may save to the same target at the same time.
    partial = target.with_name(f".{target.name}.{uuid4().hex}.partial")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
