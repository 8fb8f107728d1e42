"""Every document below a prefix of a bucket, or in a folder, found as it is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from obstore.exceptions import BaseError

from pecia.cli.inputs import files_below, label_of, sniffed
from pecia.configuration import document_settings
from pecia.errors import UnavailableError
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import UrlRef
from pecia_schemas.payloads import in_bucket, open_bucket
from pecia_schemas.states import Lane
from pecia_schemas.tasks import ReadDocument, task_to_json

_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One document that lies there."""

    name: str
    """As the user of the command knows it."""
    source: Path | str
    version: str
    """What is another whenever its content is."""
    size: int
    """Bytes."""
    label: str | None

    def key(self, asked: ReadDocument, lane: Lane, keys: Keyring) -> str:
        """Return what names this version of the document, read as `asked`: it tells nothing of where it lies.

        Under an encryption key names cannot be guessed without it.
        """
        how = task_to_json(asked)
        parts = [self.name, self.version, how, lane]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape"))
        return f"backfill/{keys.name_of(digest.hexdigest(), keys.current)}"


ANY_SOURCE = UrlRef(url="s3://any/document")
"""Stands for a document where only what is asked about it counts."""


def documents_below(where: str) -> Iterator[Found]:
    """Yield the documents of a folder or of `s3://bucket/prefix`, searched to the bottom, in the order of their names.

    In a folder only files that can be read as documents, none that is hidden; in a bucket all objects that are not
    empty. Raises `typer.BadParameter`, `UnavailableError`.
    """
    if found := in_bucket(where):
        return _in_bucket(*found)
    folder = Path(where)
    if not os.path.isdir(folder):  # noqa: PTH112  Path's raises for a folder that may not be entered
        raise typer.BadParameter(f"'{where}' is no folder, and no s3://bucket/prefix", param_hint="PREFIX")
    return _in_folder(folder)


def _in_folder(folder: Path) -> Iterator[Found]:
    for path in files_below(folder):
        media = sniffed(path)
        if media is not None and not media.is_video:
            about = path.stat()
            version = f"{about.st_mtime_ns} {about.st_size}"
            yield Found(
                name=str(path.absolute()),
                source=path,
                version=version,
                size=about.st_size,
                label=label_of(str(path.relative_to(folder))),
            )


def _in_bucket(bucket: str, prefix: str) -> Iterator[Found]:
    if not bucket:
        raise typer.BadParameter("name a bucket: s3://bucket/prefix", param_hint="PREFIX")
    store = open_bucket(bucket, document_settings(), retries=_RETRIES)
    try:
        for objects in store.list(prefix.strip("/") or None):
            for one in objects:
                if one["size"]:
                    url = f"s3://{bucket}/{one['path']}"
                    version = one["e_tag"] or f"{one['last_modified'].timestamp()} {one['size']}"
                    yield Found(
                        name=url,
                        source=url,
                        version=version,
                        size=one["size"],
                        label=label_of(one["path"][len(prefix) :].lstrip("/")) or label_of(one["path"]),
                    )
    except (BaseError, OSError) as error:
        raise UnavailableError(
            f"The bucket cannot be listed ({type(error).__name__}): check its name, PECIA_SOURCE_OPTIONS, and that the "
            "object store answers."
        ) from None
