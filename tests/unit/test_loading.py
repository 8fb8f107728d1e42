"""What the client and its command load of what is slow to load: judged by modules, for time depends on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SLOW = (
    "alembic",
    "celery",
    "cryptography.hazmat",
    "jsonschema",
    "kombu",
    "opentelemetry",
    "pecia_workers",
    "redis",
    "standardwebhooks",
)
"""What neither the client nor `pecia list` needs, loaded with it or not."""

_PROGRAM = """
import io, json, os, sys
from contextlib import redirect_stdout, redirect_stderr

loaded = {}

def run(name, *arguments):
    from pecia.cli import run
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            run(arguments)
        except SystemExit:  # the end of a completion
            pass
    loaded[name] = sorted(sys.modules)

if sys.argv[1] == "client":
    import pecia
    for name in pecia.__all__:
        getattr(pecia, name)
    loaded["client"] = sorted(sys.modules)
else:
    run("version", "--version")
    run("help", "--help")
    os.environ |= {"_PECIA_COMPLETE": "complete_bash", "COMP_WORDS": "pecia l", "COMP_CWORD": "1"}
    run("completion")
    del os.environ["_PECIA_COMPLETE"]
    run("list", "list")
print(json.dumps(loaded))
"""


def loaded_by(subject: str) -> dict[str, set[str]]:
    # Nothing answers there, so that `pecia list` ends when all that reads is loaded.
    stores = {
        "PECIA_DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "PECIA_REDIS_URL": "redis://127.0.0.1:1",
        "PECIA_PAYLOAD_URL": "/nowhere",
    }
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, subject], env=os.environ | stores, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, list[str]] = json.loads(told.stdout)
    return {name: set(modules) for name, modules in found.items()}


@pytest.fixture(scope="module")
def command() -> dict[str, set[str]]:
    return loaded_by("command")


@pytest.mark.parametrize("step", ["version", "help", "completion"])
def test_what_names_no_verb_loads_no_verb(command: dict[str, set[str]], step: str) -> None:
    slow = {*SLOW, "PIL", "asyncio", "obstore", "pecia.client", "psycopg", "pydantic", "rich", "sqlalchemy"}
    assert not slow & command[step]


def test_a_verb_that_reads_loads_only_what_reads(command: dict[str, set[str]]) -> None:
    assert {"psycopg", "rich"} <= command["list"]
    assert (
        not {*SLOW, "PIL", "pecia.cli.reading", "pecia_schemas.settings.worker", "sqlalchemy.orm"}
        & command["list"]
    )


def test_every_public_name_is_imported_without_what_connects() -> None:
    loaded = loaded_by("client")["client"]
    assert {"pecia.client", "pecia.aio.client"} <= loaded
    slow = {*SLOW, "PIL", "pecia_schemas.settings.worker", "psycopg", "rich", "sqlalchemy", "typer"}
    assert not slow & loaded
