"""`compose/kubernetes`: what Kubernetes, KEDA and the fleet itself would refuse, or what would match nothing."""

from datetime import timedelta
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import typer

from pecia.cli.app import app
from pecia_schemas.settings import WorkerSettings, known_names, read_settings
from tests.shared.manifests import MANIFESTS, Object, files, named_images, read, rendered

pytestmark = pytest.mark.gate

OVERLAYS = ["cpu", "gpu", "migrate"]
KUBERNETES = ["1.29", "1.37"]
CUSTOM = {
    "ScaledObject": {
        *("scaleTargetRef", "name", "minReplicaCount", "maxReplicaCount", "pollingInterval", "advanced"),
        *("horizontalPodAutoscalerConfig", "behavior", "triggers", "type", "metricType", "authenticationRef"),
        *("metadata", "query", "targetQueryValue", "activationTargetQueryValue"),
    },
    "TriggerAuthentication": {"secretTargetRef", "parameter", "name", "key"},
    "PodMonitor": {
        *("jobLabel", "selector", "matchLabels", "matchExpressions", "key", "operator", "values"),
        *("podMetricsEndpoints", "port", "path", "interval"),
    },
}
"""Fields of the resources that KEDA 2.17 and the Prometheus operator define, as far as the manifests use them."""
GIVING_BACK = timedelta(seconds=45)
"""At most, after the drain: what the pool's own limits add up to."""
OTHER_NAMES = {"HOME", "OTEL_EXPORTER_OTLP_ENDPOINT"}
COMMAND: Any = typer.main.get_command(app)


def of_kind(kind: str, *overlays: str) -> list[Object]:
    found = [one for overlay in overlays or OVERLAYS for one in rendered(overlay) if one["kind"] == kind]
    return list({one["metadata"]["name"]: one for one in found}.values())


def workloads() -> list[Object]:
    return of_kind("Deployment") + of_kind("Job")


def pod_of(workload: Object) -> Any:
    return workload["spec"]["template"]["spec"]


def container_of(workload: Object) -> Any:
    (container,) = pod_of(workload)["containers"]
    return container


def name_of(thing: Object) -> str:
    return f"{thing['kind']}-{thing['metadata']['name']}"


def specs_of(kind: str, *overlays: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in of_kind(kind, *overlays)}


(SETTINGS,) = (one["data"] for one in of_kind("ConfigMap"))
NETWORK = specs_of("NetworkPolicy")


def every_object() -> list[Any]:
    extra = read(MANIFESTS / "namespace.yaml") + read(MANIFESTS / "secrets.example.yaml")
    found = [one for overlay in OVERLAYS for one in rendered(overlay)] + extra
    seen = {name_of(one): one for one in found}
    return [pytest.param(one, id=name) for name, one in seen.items()]


SECRETS = {one["metadata"]["name"]: one["stringData"] for one in read(MANIFESTS / "secrets.example.yaml")}


def fields_of(value: Any) -> set[str]:
    """Return the names of all fields, but for those within a behavior or labels, which are others' to judge."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if not isinstance(value, dict):
        return set()
    inner = (fields_of(one) for name, one in value.items() if name not in ("behavior", "matchLabels"))
    return value.keys() | set().union(*inner)


@pytest.mark.parametrize("thing", every_object())
def test_kubernetes_and_the_operators_know_every_object_and_field(thing: Object) -> None:
    if thing["kind"] in CUSTOM:
        assert fields_of(thing["spec"]) <= CUSTOM[thing["kind"]]
        return
    for release in KUBERNETES:
        assert kubernetes_validate.validate(thing, release, strict=True)


@pytest.mark.parametrize("thing", of_kind("ScaledObject"), ids=name_of)
def test_what_keda_makes_of_a_scaled_object_is_an_autoscaler(thing: Object) -> None:
    scaled = thing["spec"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": scaled["scaleTargetRef"]["name"]}
    behavior = scaled.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": f"keda-hpa-{thing['metadata']['name']}"},
        "spec": {"scaleTargetRef": target, "maxReplicas": scaled["maxReplicaCount"], "behavior": behavior},
    }
    kubernetes_validate.validate(autoscaler, KUBERNETES[-1], strict=True)
    assert scaled["minReplicaCount"] <= scaled["maxReplicaCount"]


def test_every_file_belongs_to_an_overlay() -> None:
    loose = {MANIFESTS / "namespace.yaml", MANIFESTS / "secrets.example.yaml"}
    named = {file for overlay in ("base", *OVERLAYS) for file in files(overlay)}
    assert set(MANIFESTS.rglob("*.yaml")) == named | loose


def test_the_example_holds_no_secret() -> None:
    commented = (MANIFESTS / "secrets.example.yaml").read_text()
    values = [value for secret in SECRETS.values() for value in secret.values()]
    told = {value.removeprefix("whsec_") for value in values if "example.internal" not in value}
    assert told <= {"PASSWORD", "KEY", "5432", "pecia", "scaler", "verify-full"}
    assert all("PASSWORD" in line for line in commented.splitlines() if "://" in line)


@pytest.mark.parametrize("workload", workloads(), ids=name_of)
def test_a_pod_has_no_rights_that_it_does_not_need(workload: Object) -> None:
    pod, container = pod_of(workload), container_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": workload["metadata"]["name"] != "engine-gpu",
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("workload", workloads(), ids=name_of)
def test_what_a_pod_runs_is_a_verb_of_the_command(workload: Object) -> None:
    container = container_of(workload)
    assert container["command"] == ["pecia"]
    verb, *arguments = container["args"]
    COMMAND.get_command(typer.Context(COMMAND), verb).make_context(verb, list(arguments))


@pytest.mark.parametrize("workload", workloads(), ids=name_of)
def test_settings_of_pods_exist_and_have_a_meaning(workload: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    container = container_of(workload)
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind("ConfigMap")}
    plain: dict[str, str] = {}
    named: set[str] = set()
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            plain |= maps[source["configMapRef"]["name"]]
        else:
            named |= SECRETS[source["secretRef"]["name"]].keys()
    for entry in container.get("env", ()):
        if reference := entry.get("valueFrom", {}).get("secretKeyRef"):
            assert entry["name"] in SECRETS[reference["name"]]
            assert entry["name"] == reference["key"]
        else:
            plain[entry["name"]] = entry["value"]

    assert named | plain.keys() <= known_names() | OTHER_NAMES
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    assert read_settings(WorkerSettings)


PAGES = {"flower": WorkerSettings().flower_port, "gateway": WorkerSettings().gateway_port}
"""What serves pages and claims nothing, and where."""


@pytest.mark.parametrize("workload", of_kind("Deployment"), ids=name_of)
def test_a_pod_has_time_to_drain_and_to_give_back(workload: Object) -> None:
    drain = timedelta(seconds=int(SETTINGS["PECIA_DRAIN_TIMEOUT"]))
    if workload["metadata"]["name"] not in PAGES:
        assert timedelta(seconds=pod_of(workload)["terminationGracePeriodSeconds"]) >= drain + GIVING_BACK


@pytest.mark.parametrize("workload", of_kind("Deployment"), ids=name_of)
def test_probes_ask_a_port_that_is_served(workload: Object) -> None:
    container, pod = container_of(workload), pod_of(workload)
    port = PAGES.get(workload["metadata"]["name"], 9464)
    assert SETTINGS["PECIA_METRICS_PORT"] == "9464"
    assert SETTINGS["PECIA_METRICS_ADDRESS"] == "0.0.0.0"  # noqa: S104  in a container
    names = {one["name"]: one["containerPort"] for one in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert names[container[probe]["httpGet"]["port"]] == port
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_who_opens_documents_has_a_spool_that_can_be_written() -> None:
    for workload in of_kind("Deployment"):
        paths = {mount["mountPath"] for mount in container_of(workload)["volumeMounts"]}
        opens = workload["metadata"]["name"] in ("ingest", "engine", "engine-gpu")
        assert (SETTINGS["PECIA_SPOOL_DIR"] in paths) is opens
        assert "/tmp" in paths  # noqa: S108


def test_images_are_those_of_compose_in_this_version() -> None:
    for overlay in OVERLAYS:
        images = named_images(overlay)
        runs = [one for one in rendered(overlay) if one["kind"] in ("Deployment", "Job")]
        assert {container_of(one)["image"] for one in runs} <= images.keys()
        assert {image.rsplit(":", 1)[1] for image in images.values()} == {version("pecia")}


def labels_of_pods() -> dict[str, dict[str, str]]:
    return {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in workloads()}


def selected(selector: Object) -> set[str]:
    """Return the workloads whose pods a selector finds."""
    return {
        name
        for name, labels in labels_of_pods().items()
        if selector.get("matchLabels", {}).items() <= labels.items()
        and all(_holds(expression, labels) for expression in selector.get("matchExpressions", ()))
    }


def _holds(expression: Object, labels: dict[str, str]) -> bool:
    return (labels.get(expression["key"]) in expression["values"]) is (expression["operator"] == "In")


WORKERS = {"ingest", "engine", "engine-gpu", "webhooks", "upkeep"}
EVERYBODY = {*WORKERS, *PAGES, "migrate"}
POLICIES = {
    "nothing": EVERYBODY,
    "stores": EVERYBODY,
    "traces": EVERYBODY,
    "documents": WORKERS - {"webhooks"} | {"gateway"},
    "strangers": {"ingest", "webhooks"},
}


def test_every_selector_finds_the_pods_that_it_means() -> None:
    (monitor,) = of_kind("PodMonitor")
    services = [selected({"matchLabels": one["spec"]["selector"]}) for one in of_kind("Service")]
    budgets = [selected(one["spec"]["selector"]) for one in of_kind("PodDisruptionBudget")]
    assert labels_of_pods().keys() == EVERYBODY
    assert {name: selected(NETWORK[name]["podSelector"]) for name in POLICIES} == POLICIES
    assert selected(monitor["spec"]["selector"]) == WORKERS
    assert services == [{"flower"}, {"gateway"}]
    assert sorted(name for names in budgets for name in names) == sorted({*WORKERS, "gateway"})
    assert {labels[monitor["spec"]["jobLabel"]] for labels in labels_of_pods().values()} == {"pecia"}


def test_policies_close_everything_and_open_the_ports_that_are_served() -> None:
    assert set(NETWORK["nothing"]) == {"podSelector", "policyTypes"}
    ports = {port["name"] for one in of_kind("Deployment") for port in container_of(one)["ports"]}
    opened = [rule["ports"] for policy in NETWORK.values() for rule in policy.get("ingress", ())]
    assert {port["port"] for rule in opened for port in rule} == ports


def test_traces_get_to_the_collector() -> None:
    (rule,) = NETWORK["traces"]["egress"]
    collector = urlsplit(SETTINGS["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert rule["ports"] == [{"port": collector.port}]
    namespace = rule["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert collector.hostname == f"collector.{namespace}"


def test_no_pod_reaches_the_metadata_of_the_cloud() -> None:
    rules = [rule for policy in NETWORK.values() for rule in policy.get("egress", ())]
    for block in [target.get("ipBlock", {}) for rule in rules for target in rule["to"]]:
        assert block.get("cidr") != "0.0.0.0/0" or "169.254.0.0/16" in block["except"]


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_what_is_scaled_exists_once_and_nothing_else_says_how_many(overlay: str) -> None:
    scaled = {spec["scaleTargetRef"]["name"] for spec in specs_of("ScaledObject", overlay).values()}
    deployments = specs_of("Deployment", overlay)
    assert scaled == {name for name, spec in deployments.items() if "replicas" not in spec}
    (authentication,) = of_kind("TriggerAuthentication", overlay)
    for reference in authentication["spec"]["secretTargetRef"]:
        assert reference["key"] in SECRETS[reference["name"]]
