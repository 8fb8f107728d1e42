"""The images install the wheel as their Dockerfile says."""

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

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]


def install_line(stage: str) -> str:
    """Return what a stage of the Dockerfile tells pip."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "compose" / "Dockerfile").read_text())
    (line,) = re.findall(rf"AS {stage}$.*?(pip --python .*?)$", text, flags=re.MULTILINE | re.DOTALL)
    return str(line)


@pytest.fixture(scope="module", params=["fleet-packages", "cpu-packages"])
def installed(
    request: pytest.FixtureRequest, wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An environment with the wheel in it. What that needs is there already, from this one; no index is asked."""
    directory = tmp_path_factory.mktemp("image")
    home = directory / "venv"
    venv.create(home)
    line = install_line(request.param).replace("/opt/pecia", shlex.quote(str(home)))
    line = line.replace("/wheels", shlex.quote(str(Path(str(wheel.filename)).parent)))
    pip = f"{shlex.quote(sys.executable)} -m pip --isolated --disable-pip-version-check"
    command = line.replace("pip ", f"{pip} ", 1) + " --no-index"
    told = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=borrowing(directory), capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "does not provide the extra" not in told.stderr  # which is no error to pip
    return home


def borrowing(directory: Path) -> dict[str, str]:
    """Return an environment in which every package of this one is found, but ours."""
    packages = directory / "packages"
    packages.mkdir(exist_ok=True)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        link = packages / package.name
        if "pecia" not in package.name and not link.is_symlink():
            link.symlink_to(package)
    return {**os.environ, "PYTHONPATH": str(packages)}


def test_the_lock_has_all_that_it_needs(installed: Path) -> None:
    packages = {path.name.partition("-")[0] for path in installed.rglob("*.dist-info")}
    assert packages == {"pecia"}


def test_what_is_installed_is_a_worker(installed: Path, tmp_path: Path) -> None:
    told = subprocess.run(
        [installed / "bin" / "pecia", "worker", "ingest"],
        env=borrowing(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert told.stderr.startswith("A worker needs its stores: set PECIA_DATABASE_URL")
