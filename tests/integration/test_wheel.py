"""The wheel holds everything that an installed Pecia needs, and nothing but its four packages."""

import re
import shlex
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from pecia_schemas.connecting import sqlalchemy_url
from tests.shared.command import ran

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]


def test_it_holds_four_typed_packages_their_licence_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packages = {
        "pecia": "producer",
        "pecia_schemas": "schemas",
        "pecia_workers": "workers",
        "pecia_migrations": "migrations",
    }
    tracked = ran("git", "ls-files", *(f"{root}/{name}" for name, root in packages.items()), cwd=ROOT).stdout
    files = {path.partition("/")[2] for path in tracked.splitlines()}
    assert {f"{package}/py.typed" for package in packages} <= files
    names = set(wheel.namelist())
    (metadata,) = {name.partition("/")[0] for name in names} - packages.keys()
    assert names == files | {
        f"{metadata}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_no_file_names_the_machine_that_built_it(wheel: zipfile.ZipFile) -> None:
    paths = (str(ROOT), str(Path.home()) + "/", sys.prefix)
    assert [
        name for name in wheel.namelist() if any(path.encode() in wheel.read(name) for path in paths)
    ] == []


def test_a_sdist_holds_packages_alone_and_builds_the_same_wheel(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path), "--target")
    assert ran(*build, "sdist", cwd=ROOT).returncode == 0
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {path.name for path in source.iterdir()} == {
        *("producer", "workers", "schemas", "migrations", "constraints.txt"),
        *("pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"),
    }
    assert ran(*build, "wheel", cwd=source).returncode == 0
    assert next(tmp_path.glob("*.whl")).read_bytes() == Path(str(wheel.filename)).read_bytes()


def test_an_installed_wheel_migrates(wheel: zipfile.ZipFile, tmp_path: Path, empty_database_url: str) -> None:
    wheel.extractall(tmp_path)
    program = "import pecia, pecia.cli, sys; print(pecia.__file__); sys.argv = ['pecia', 'migrate']; pecia.cli.main()"
    environment = {"PYTHONPATH": str(tmp_path), "PECIA_DATABASE_URL": empty_database_url}
    completed = ran(sys.executable, "-c", program, cwd=tmp_path, env=environment)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(str(tmp_path))
    engine = create_engine(sqlalchemy_url(empty_database_url))
    assert inspect(engine).has_table("jobs")
    engine.dispose()


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
    told = ran("sh", "-c", command, cwd=ROOT, env=borrowing(directory))
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
    return {"PYTHONPATH": str(packages)}


def test_the_lock_has_all_that_it_needs(installed: Path) -> None:
    assert {path.name.partition("-")[0] for path in installed.rglob("*.dist-info")} == {"pecia"}


def test_what_is_installed_is_a_worker(installed: Path, tmp_path: Path) -> None:
    told = ran(installed / "bin" / "pecia", "worker", "ingest", env=borrowing(tmp_path), cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("A worker needs its stores: set PECIA_DATABASE_URL")
