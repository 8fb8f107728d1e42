"""Where a model's configuration lies on this machine, once vLLM has loaded it."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def local_checkpoint(model: str, revision: str | None = None) -> Path | None:
    """Return the directory of a checkpoint, if it is on this machine."""
    if not Path(model).is_dir() and importlib.util.find_spec("huggingface_hub") is None:
        return None
    try:
        return checkpoint_directory(model, revision)
    except (OSError, ValueError):
        return None


def checkpoint_directory(model: str, revision: str | None = None) -> Path:
    """Return the directory of a checkpoint: itself, or that of a name on the Hub in the local cache.

    Nothing is downloaded.
    """
    directory = Path(model)
    if directory.is_dir():
        return directory
    from huggingface_hub import snapshot_download  # noqa: PLC0415  comes with pecia[vllm]

    return Path(snapshot_download(model, revision=revision, allow_patterns=["*.json"], local_files_only=True))
