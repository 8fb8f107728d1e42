"""What Docker Compose makes of compose/: the services, with their commands and environments, but for Docker itself."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[2] / "compose"
SIZES = ("small", "medium", "large")

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")
_FLEET_IMAGES = re.compile(r"pecia(-\w+)?:")


class MissingVariableError(Exception):
    """A variable has no value and must have one; its text is what Compose would say."""


def environment_of(size: str, directory: Path) -> dict[str, str]:
    """Return what `new-env.sh` writes for a fleet of that size, in a copy of compose/ in `directory`."""
    copy = directory / "compose"
    shutil.copytree(COMPOSE, copy)
    subprocess.run([copy / "new-env.sh", size], check=True)
    return assignments(copy / ".env")


def assignments(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def stack(variables: Mapping[str, str], *overrides: str) -> dict[str, Any]:
    """Return compose.yaml, with overrides laid over it as Compose does. Raises `MissingVariableError`."""
    merged: Any = {}
    for name in ("compose.yaml", *overrides):
        read = yaml.safe_load((COMPOSE / name).read_text())
        merged = _laid_over(merged, _interpolated(read, variables))
    return dict(merged)


def fleet_services(stack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services that run an image of ours."""
    return {name: one for name, one in stack["services"].items() if _FLEET_IMAGES.match(one["image"])}


def variables_used(name: str) -> Iterator[tuple[str, str | None]]:
    """Return each variable that a compose file reads, with its default if it has one."""
    for found in _VARIABLE.finditer((COMPOSE / name).read_text()):
        yield found["name"], found["rest"] if found["kind"] == "-" else None


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, variables) for inner in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _value(found, variables), value)
    return value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    given = variables.get(found["name"], "")
    if given or not found["kind"]:
        return given
    if found["kind"] == "?":
        raise MissingVariableError(f"required variable {found['name']} is missing a value: {found['rest']}")
    return found["rest"]


def _laid_over(base: Any, other: Any) -> Any:
    if isinstance(base, dict) and isinstance(other, dict):
        shared = {key: _laid_over(base[key], other[key]) for key in base.keys() & other.keys()}
        return {**base, **other, **shared}
    if isinstance(base, list) and isinstance(other, list):
        return [*base, *(item for item in other if item not in base)]
    return other
