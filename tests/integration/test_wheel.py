"""The wheel holds everything that an installed Pecia needs, and nothing but its four packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from pecia_schemas.database import sqlalchemy_url

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]


def test_it_holds_four_typed_packages(wheel: zipfile.ZipFile) -> None:
    packages = {"pecia", "pecia_schemas", "pecia_workers", "pecia_migrations"}
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)


def test_it_holds_what_is_read_at_run_time(wheel: zipfile.ZipFile) -> None:
    for read in ("*.lua", "prompts/*.md", "engines/*.toml", "engines/cards/*.toml"):
        roots = [ROOT / "workers", ROOT / "schemas"]
        files = [path.relative_to(root) for root in roots for path in root.rglob(read)]
        assert files
        assert {str(file) for file in files} <= set(wheel.namelist())


def test_pecia_migrate_works_from_an_installed_wheel(
    wheel: zipfile.ZipFile, tmp_path: Path, empty_database_url: str
) -> None:
    wheel.extractall(tmp_path)
    program = "import pecia, pecia.cli, sys; print(pecia.__file__); sys.argv = ['pecia', 'migrate']; pecia.cli.main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PECIA_DATABASE_URL": empty_database_url}
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(str(tmp_path))
    engine = create_engine(sqlalchemy_url(empty_database_url))
    assert inspect(engine).has_table("jobs")
    engine.dispose()
