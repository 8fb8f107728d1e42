"""The wheel holds everything that an installed Pecia needs, and nothing but its four packages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from pecia_schemas.database import sqlalchemy_url

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def test_it_holds_four_typed_packages(wheel: zipfile.ZipFile) -> None:
    packages = {"pecia", "pecia_schemas", "pecia_workers", "pecia_migrations"}
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)


def test_it_holds_what_is_read_at_run_time(wheel: zipfile.ZipFile) -> None:
    for read in ("*.lua", "prompts/*.md", "engines/*.toml"):
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


@pytest.mark.parametrize("stage", ["fleet-packages", "cpu-packages"])
def test_the_images_install_it_as_their_dockerfile_says(
    wheel: zipfile.ZipFile, tmp_path: Path, stage: str
) -> None:
    """What it needs is there already, from this environment; no index is asked."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "compose" / "Dockerfile").read_text())
    (line,) = re.findall(rf"AS {stage}$.*?(pip --python .*?)$", text, flags=re.MULTILINE | re.DOTALL)
    venv.create(tmp_path / "venv")
    line = line.replace("/opt/pecia", shlex.quote(str(tmp_path / "venv")))
    line = line.replace("/wheels", shlex.quote(str(Path(str(wheel.filename)).parent)))
    environment = {**os.environ, "PYTHONPATH": all_packages_but_ours(tmp_path / "there"), "PIP_NO_INDEX": "1"}
    pip = f"{shlex.quote(sys.executable)} -m pip --disable-pip-version-check"
    installed = subprocess.run(
        ["sh", "-c", line.replace("pip ", f"{pip} ", 1)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    program = [tmp_path / "venv" / "bin" / "pecia", "worker", "ingest"]
    told = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr.splitlines()) == (
        2,
        [
            "A worker needs its stores: set PECIA_DATABASE_URL, PECIA_REDIS_URL, PECIA_PAYLOAD_URL, or run `pecia up`."
        ],
    )


def all_packages_but_ours(directory: Path) -> str:
    directory.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith("pecia"):
            (directory / package.name).symlink_to(package)
    return str(directory)
