"""What the client and its command load of what is slow to load: judged by modules, for time depends on the machine."""

import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.shared.command import ran
from tests.shared.snippets import ROOT

SLOW = (
    *("alembic", "celery", "cryptography.hazmat", "jsonschema", "kombu", "opentelemetry"),
    *("pecia_workers", "redis", "standardwebhooks"),
)
"""What neither the client nor `pecia list` needs, loaded with it or not."""

CONNECTING = {*SLOW, "PIL", "pecia_schemas.settings.worker", "psycopg", "rich", "sqlalchemy", "typer"}
"""What is not loaded before a client connects."""

BUILT = {"pecia_schemas.tasks"}
"""What pydantic builds when it is imported, and so looks through all distributions for plugins of its own."""

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
    pecia.Client
    loaded["client"] = sorted(sys.modules)
    from pydantic import BaseModel
    public = {name: getattr(pecia, name) for name in pecia.__all__}
    loaded["all"] = sorted(sys.modules)
    loaded["built"] = [
        name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
        and kind.__pydantic_complete__
    ]
elif sys.argv[1] == "remote":
    run("list", "list")
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
    if subject == "remote":
        stores = {"PECIA_GATEWAY_URL": "http://127.0.0.1:1", "PECIA_API_KEY": "key"}
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, subject], env=os.environ | stores, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, list[str]] = json.loads(told.stdout)
    return {name: set(modules) for name, modules in found.items()}


def test_what_names_no_verb_loads_no_verb_and_one_that_reads_only_what_reads() -> None:
    command = loaded_by("command")
    slow = {*SLOW, "PIL", "asyncio", "obstore", "pecia.client", "psycopg", "pydantic", "rich", "sqlalchemy"}
    for step in ("version", "help", "completion"):
        assert not slow & command[step], step
    assert "psycopg" in command["list"]
    unread = {"PIL", "pecia.cli.reading", "pecia.formats", "pecia.saving", "pecia_schemas.settings.worker"}
    assert not {*SLOW, *BUILT, *unread, "rich", "sqlalchemy"} & command["list"]


def test_a_verb_that_reads_through_a_gateway_loads_nothing_of_stores() -> None:
    loaded = loaded_by("remote")["list"]
    assert "httpx2" in loaded
    stores = {"obstore", "pecia_schemas.payloads", "psycopg", "sqlalchemy"}
    assert not {*SLOW, *BUILT, *stores, "PIL", "pecia_schemas.settings.worker", "rich"} & loaded


def test_the_command_ends_without_collecting_what_ends_with_it() -> None:
    program = """
import atexit, gc
from pecia.cli import main
atexit.register(lambda: print(gc.get_freeze_count() > 0))
main(["--version"])
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True).endswith("True\n")


def test_the_client_and_every_public_name_are_imported_without_what_connects_and_no_model_is_built() -> None:
    client = loaded_by("client")
    unused = {"obstore", "pecia.formats", "pecia_schemas.payloads", "pydantic_settings"}
    assert "pecia.client" in client["client"]
    assert not {*CONNECTING, *BUILT, *unused} & client["client"]
    assert "pecia.aio.client" in client["all"]
    assert not CONNECTING & client["all"]
    assert not client["built"]


CLIENT = ("accounts", "backfill", "folder", "jobs", "reading", "results", "watching", "webhooks")
WORKER = (
    "app",
    "commands.doctor",
    "commands.engine",
    "commands.up",
    "commands.worker",
    "commands.checking",
    "worker.runtime",
)


@pytest.mark.parametrize(
    ("modules", "lacking"),
    [
        (
            [f"pecia.cli.{name}" for name in CLIENT],
            ("fastapi", "nltk", "pecia_workers", "rapidfuzz", "uvicorn"),
        ),
        (
            [f"pecia_workers.{name}" for name in WORKER],
            ("cv2", "onnxruntime", "rapidfuzz", "rapidocr", "vllm"),
        ),
    ],
    ids=["the command", "a worker"],
)
def test_what_an_extra_brings_is_not_needed_without_it(modules: list[str], lacking: tuple[str, ...]) -> None:
    program = (
        f"import sys; from importlib import import_module\n"
        f"sys.modules.update(dict.fromkeys({lacking!r}))\n"
        f"for name in {modules!r}: import_module(name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_modules_import_each_other_in_a_circle_not_even_for_types_or_within_functions() -> None:
    graph = grimp.build_graph("pecia", "pecia_migrations", "pecia_schemas", "pecia_workers", cache_dir=None)
    # the client's settings refuse names that the worker's, which they do not load, do not have either
    graph.remove_import(importer="pecia_schemas.settings", imported="pecia_schemas.settings.worker")
    TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules}).prepare()


_COLLECTING = """
import sys
import pytest

pytest.main(["--collect-only", "--quiet", "tests/unit/test_batching_policies.py"])
print(*sys.modules, sep="\\n")
"""


def test_a_unit_test_of_rules_loads_no_servers_and_no_decoders() -> None:
    ended = ran(sys.executable, "-c", _COLLECTING, cwd=ROOT)
    assert "tests collected" in ended.stdout
    heavy = {"celery", "numpy", "opentelemetry.sdk", "PIL", "psycopg", "redis", "schemathesis", "sqlalchemy"}
    assert not heavy & set(ended.stdout.splitlines())
