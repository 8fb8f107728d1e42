"""What tells a checkpoint from every other one, a fine-tuned copy of the same size included."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pecia_workers.engines.vllm_checkpoint import checkpoint_directory

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_SAMPLE: Final = 64 * 1024
"""Bytes; a smaller file is read whole."""
_STRIDE: Final = 16 * 1024**2
"""Bytes from one sample to the next: tuning touches a matrix of every layer, and samples fall into many of them."""


def revision_of(settings: WorkerSettings) -> str | None:
    """Return what changes with the model of the settings or with one of its adapters; takes seconds.

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


def fingerprint(directories: Iterable[Path]) -> str:
    """Return a hash over names, sizes and samples of all files; the same for a copy on another machine.

    Raises `OSError`.
    """
    digest = hashlib.sha256()
    for directory in directories:
        for file in _files(directory):
            name = file.relative_to(directory).as_posix()
            digest.update(f"{name}\0{file.stat().st_size}\0".encode())
            for sample in _samples(file):
                digest.update(sample)
        digest.update(b"\0")
    return digest.hexdigest()


def _files(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(
        path for path in found if not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _samples(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for start in range(0, file.stat().st_size, _STRIDE):
            opened.seek(start)
            yield opened.read(_SAMPLE)
