"""Programs that are run to their end; the `pecia` command in this process, without the start of an interpreter."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest

from pecia.cli import run
from tests.shared.limits import WAIT_S


def ran(
    *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> CompletedProcess[str]:
    """Run a program to its end and return its exit code and what it said; `env` is added to this environment."""
    return subprocess.run(
        command,
        env=os.environ | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@contextmanager
def reviewing(env: Mapping[str, str], *options: str) -> Iterator[str]:
    """Run `pecia review` as eva until the block ends, and yield the address that it prints."""
    command, own = [sys.executable, "-m", "pecia", "review", *options], {"PECIA_CLIENT_NAME": "eva", **env}
    with subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        try:
            yield said.removeprefix("Review: ").strip()
        finally:
            process.terminate()
            assert process.wait(WAIT_S) == 0


def run_pecia(
    *words: object, env: Mapping[str, str] | None = None, stdin: str | bytes = ""
) -> CompletedProcess[str]:
    """Run one command line and return what `subprocess.run` would: exit code, standard output and error.

    It runs in the current directory. Bytes that are no text, a PDF's, come back by `surrogateescape`.
    """
    written = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(start), "utf-8", newline="") for start in (written, b"", b"")]
    with mock.patch.dict(os.environ, env or {}), pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = run([str(word) for word in words])
        except SystemExit as ended:  # of completion, and of what a library ends
            code = int(ended.code or 0)
    return CompletedProcess(list(map(str, words)), code, *map(_text, streams[1:]))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(errors="surrogateescape")
