"""`compose/kubernetes` as kustomize reads it, and its custom resources by the fields that their operators know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MANIFESTS = Path(__file__).parents[2] / "compose" / "kubernetes"

Object = dict[str, Any]


@cache
def read(file: Path) -> list[Object]:
    """Return the objects of a file."""
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
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"]},
        "data": data,
    }


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class Metadata(_Exact):
    name: str


class _Reference(_Exact):
    name: str


class _Trigger(_Exact):
    """Of KEDA's scaler for Postgres; the metadata are text, as its resource has them."""

    type: Literal["postgresql"]
    metric_type: Literal["AverageValue", "Value"]
    authentication_ref: _Reference
    metadata: dict[Literal["query", "targetQueryValue", "activationTargetQueryValue"], str]


class _HorizontalPodAutoscaler(_Exact):
    behavior: dict[str, Any]


class _Advanced(_Exact):
    horizontal_pod_autoscaler_config: _HorizontalPodAutoscaler


class _Scaling(_Exact):
    scale_target_ref: _Reference
    min_replica_count: int = Field(ge=0)
    max_replica_count: int = Field(ge=1)
    polling_interval: int = Field(ge=1)
    advanced: _Advanced | None = None
    triggers: list[_Trigger]


class ScaledObject(_Exact):
    """KEDA's, as far as the manifests use it; by `apis/keda/v1alpha1` of KEDA 2.17."""

    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: _Scaling

    def autoscaler(self) -> Object:
        """Return an autoscaler that behaves as this one asks, which Kubernetes' own schema can judge."""
        spec = self.spec
        behavior = spec.advanced.horizontal_pod_autoscaler_config.behavior if spec.advanced else {}
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": spec.scale_target_ref.name}
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": f"keda-hpa-{self.metadata.name}"},
            "spec": {"scaleTargetRef": target, "maxReplicas": spec.max_replica_count, "behavior": behavior},
        }


class _SecretTarget(_Exact):
    parameter: Literal["host", "port", "dbName", "userName", "password", "sslmode"]
    name: str
    key: str


class _Authentication(_Exact):
    secret_target_ref: list[_SecretTarget]


class TriggerAuthentication(_Exact):
    """KEDA's, likewise."""

    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["TriggerAuthentication"]
    metadata: Metadata
    spec: _Authentication


class _Endpoint(_Exact):
    port: str
    path: str
    interval: str


class _Expression(_Exact):
    key: str
    operator: Literal["In", "NotIn"]
    values: list[str]


class _Selector(_Exact):
    match_labels: dict[str, str]
    match_expressions: list[_Expression]


class _Monitoring(_Exact):
    job_label: str
    selector: _Selector
    pod_metrics_endpoints: list[_Endpoint]


class PodMonitor(_Exact):
    """The Prometheus operator's, as far as the manifests use it."""

    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PodMonitor"]
    metadata: Metadata
    spec: _Monitoring


CUSTOM: dict[str, type[BaseModel]] = {
    "ScaledObject": ScaledObject,
    "TriggerAuthentication": TriggerAuthentication,
    "PodMonitor": PodMonitor,
}
