"""The images are built of pinned parts, hold no secret, and run without rights."""

import re
import sys
import tomllib
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pytest

from command import ran
from compose_stack import COMPOSE

pytestmark = pytest.mark.gate

ROOT = COMPOSE.parent
DOCKERFILE = COMPOSE / "Dockerfile"
IMAGES = ("fleet", "cpu", "gpu")


def stages() -> dict[str, tuple[str, list[str]]]:
    """Return each stage by its name: what it is built on, and its instructions."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    parts = re.split(r"^FROM (\S+) AS (\S+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: (base, [line for line in body.splitlines() if line and line[0] != "#"])
        for base, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def instructions(image: str) -> list[str]:
    """Return an image's instructions, with those of the stages it is built on."""
    base, own = stages()[image]
    return [*(instructions(base) if base in stages() else ()), *own]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    told = ran(hadolint, DOCKERFILE)
    assert told.returncode == 0, told.stdout


def test_what_images_are_built_on_is_pinned() -> None:
    given = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE.read_text(), flags=re.MULTILINE))
    bases = {base for base, _ in stages().values()} - stages().keys()
    assert bases == {f"${{{name}}}" for name in given}
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in given.values())


def test_the_gpus_image_has_a_vllm_that_pecia_works_with_and_what_pecia_wants_beside() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    wanted = [one.partition(";")[0] for one in extra if not one.startswith("pecia")]
    (engine,) = [one for one in wanted if one.startswith("vllm")]
    least, beyond = re.findall(r"0\.(\d+)", engine)
    shipped = re.search(r"^ARG VLLM=\S+:v0\.(\d+)\.", DOCKERFILE.read_text(), flags=re.MULTILINE)
    installs = next(line for line in instructions("gpu") if "pip install" in line)
    assert shipped
    assert int(least) <= int(shipped[1]) < int(beyond)
    assert [one for one in wanted if one != engine and f'"{one}"' not in installs] == []


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_without_rights_says_whether_it_is_healthy_and_holds_no_secret(image: str) -> None:
    lines = instructions(image)
    assert [line.split()[1] for line in lines if line.startswith("USER")][-1] == "10001"
    (health,) = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert "http://127.0.0.1:9464/healthz" in health
    for line in lines:
        assert not line.startswith(("ADD", "COPY . "))
        if line.startswith(("ENV", "ARG")):
            assert not re.search("(?i)password|secret|token|key=", line)


def test_packages_are_those_of_the_lock() -> None:
    lines = [line for _, own in stages().values() for line in own if re.search(r"pip\S* .*install", line)]
    assert len(lines) == 4
    assert all("--constraint" in line for line in lines)


def test_what_is_copied_is_let_into_the_build_and_nothing_that_is_private() -> None:
    admitted = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    copied = {
        source
        for _, own in stages().values()
        for line in own
        if line.startswith("COPY") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert set(admitted) == copied
    private = ["compose/.env", "compose/fleet.env", ".git/config", ".venv/bin/python", "tests/conftest.py"]
    for path, one in product(private, admitted):
        assert not fnmatch(path, one)
        assert Path(one) not in Path(path).parents
