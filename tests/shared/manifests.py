"""`compose/kubernetes` as kustomize reads it."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "compose" / "kubernetes"

Object = dict[str, Any]


@cache
def read(file: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(file.read_text()) if found]


@cache
def rendered(overlay: str) -> list[Object]:
    """Return what `kubectl apply -k` would send, but for namespaces, images and hashes in names."""
    directory = (MANIFESTS / overlay).resolve()
    (kustomization,) = read(directory / "kustomization.yaml")
    found: list[Object] = []
    for resource in kustomization["resources"]:
        path = directory / resource
        found += rendered(str(path.resolve().relative_to(MANIFESTS))) if path.is_dir() else read(path)
    for generator in kustomization.get("configMapGenerator", ()):
        found.append(_config_map(directory, generator))
    return found


def files(overlay: str) -> Iterator[Path]:
    """Yield the files that an overlay's kustomization names."""
    directory = MANIFESTS / overlay
    (kustomization,) = read(directory / "kustomization.yaml")
    yield directory / "kustomization.yaml"
    yield from (directory / name for name in kustomization["resources"] if name.endswith(".yaml"))


def named_images(overlay: str) -> dict[str, str]:
    """Return what each image's name becomes, in an overlay and those under it."""
    directory = (MANIFESTS / overlay).resolve()
    (kustomization,) = read(directory / "kustomization.yaml")
    own = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in kustomization["images"]}
    for resource in kustomization["resources"]:
        if (directory / resource).is_dir():
            own |= named_images(f"{overlay}/{resource}")
    return own


def _config_map(directory: Path, generator: Mapping[str, Any]) -> Object:
    lines = [line for name in generator["envs"] for line in (directory / name).read_text().splitlines()]
    data = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}
