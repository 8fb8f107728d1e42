"""What docs/reading.md says about fields is run as it stands there, against a fleet whose model is on a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chat_server import Behaviour, serving

PAGE = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}, "refills": {"type": "integer"}}}


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def desk(
    run_fleet: Callable[..., AbstractContextManager[Any]],
    session_directory: Path,
) -> Iterator[Callable[..., str]]:
    """Runs a command of a user of the fleet, in a directory with a scan and a schema."""

    behaviour = Behaviour(form='{"drug": "Amoxicillin 500 mg", "refills": 2}')
    directory = session_directory / "reading-desk"
    directory.mkdir()
    Image.effect_noise((300, 200), 200).save(directory / "scan.png")
    (directory / "prescription.json").write_text(json.dumps(SCHEMA))
    with (
        serving(behaviour) as server,
        run_fleet("reading", engine="openai", engine_url=server.url, decode_processes=1) as fleet,
    ):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **fleet.environment, "PATH": path}

        def run(*command: str) -> str:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run


def test_the_python_snippet_prints_text_and_fields(desk: Callable[..., str]) -> None:
    assert desk(sys.executable, "-c", block("python")).splitlines() == [
        "Amoxicillin 500 mg",
        "drug='Amoxicillin 500 mg' refills=2",
    ]


def test_the_command_prints_them_as_json(desk: Callable[..., str]) -> None:
    (page,) = json.loads(desk("sh", "-c", block("sh")))["pages"]

    assert page == {
        "number": 1,
        "text": "Amoxicillin 500 mg",
        "verdict": "ok",
        "fields": {"drug": "Amoxicillin 500 mg", "refills": 2},
    }
