"""Libraries of npm that receivers verify callbacks with: kept in the user's cache, checked by the lock's hashes."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from limits import WAIT_S
from npm_files import NothingThereError, tools

LIBRARIES: Final = ("standardwebhooks", "svix")

_HERE: Final = Path(__file__).with_name("verifiers")


def verified(library: str, secret: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return what a request holds that the library verifies, or `{"refused": why}`. Raises `NothingThereError`."""
    node, _ = tools()
    request = json.dumps({"secret": secret, "headers": dict(headers), "body": body.decode()})
    command = [node, "verify.cjs", library]
    ran = subprocess.run(
        command,
        cwd=_installed(),
        input=request.encode(),
        capture_output=True,
        check=True,
        timeout=WAIT_S,
    )
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@cache
def _installed() -> Path:
    """The directory with the libraries, of the versions and hashes in `package-lock.json`."""
    lock = (_HERE / "package-lock.json").read_bytes() + (_HERE / "verify.cjs").read_bytes()
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pecia" / "tests"
    kept = cache_home / f"verifiers-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not kept.is_dir():
        cache_home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_home) as scratch:
            made = shutil.copytree(_HERE, Path(scratch) / "verifiers")
            _install(made)
            with suppress(OSError):  # a test session beside this one was quicker
                made.rename(kept)
    return kept


def _install(directory: Path) -> None:
    command = [*tools()[1], "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    try:
        ran = subprocess.run(command, cwd=directory, capture_output=True, timeout=WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise NothingThereError("npm does not answer") from None
    if ran.returncode:
        raise NothingThereError("npm has not what tests/shared/verifiers names")
