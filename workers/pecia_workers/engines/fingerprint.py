"""What tells a checkpoint from every other one: a single changed row of its weights is another model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import checkpoint_directory

_THREADS: Final = 8
_BLOBS: Final = "blobs"
"""Where the Hub's cache keeps files, each under a hash of its content."""


def revision_of(settings: WorkerSettings) -> str | None:
    """Return what changes with the model of the settings or with one of its adapters.

    Reads all their files, about two gigabytes a second for each core; of those in the Hub's cache the names alone.
    None if one of them is not on this machine as files.
    """
    revision = settings.engine_options.get("revision")
    try:
        model = checkpoint_directory(settings.model, revision)
        adapters = [checkpoint_directory(name) for _, name in sorted(settings.adapters.items())]
        return fingerprint([model, *adapters])
    except (
        ImportError,
        OSError,
        ValueError,
    ):  # without the Hub's library there is no cache of its models either
        return None


def vllm_revision(settings: WorkerSettings) -> str | None:
    """Return that of vLLM and of the model, whose files are read only if no revision or digest names them.

    None without a result cache, which is all that it is for.
    """
    if not settings.cache:
        return None
    from vllm import __version__  # noqa: PLC0415  only where it runs; its distribution has several names

    model = settings.cache_revision or revision_of(settings)
    return model and f"vllm {__version__} {model}"


def fingerprint(directories: Iterable[Path]) -> str:
    """Return a hash over names and contents of all files; the same for a copy on another machine.

    Raises `OSError`.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor(_THREADS) as threads:
        for directory in directories:
            files = _files(directory)
            for file, content in zip(files, threads.map(_content, files), strict=True):
                digest.update(f"{file.relative_to(directory).as_posix()}\0{content}\0".encode())
            digest.update(b"\0")
    return digest.hexdigest()


def _files(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(
        path for path in found if not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _content(file: Path) -> str:
    target = file.resolve()
    if file.is_symlink() and target.parent.name == _BLOBS:
        return target.name
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
