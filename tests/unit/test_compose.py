"""compose/ says the same thing everywhere, leaves nothing open, and its images hold no secret."""

import re
import sys
import tomllib
from datetime import timedelta
from fnmatch import fnmatch
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from pecia_schemas.settings import known_names
from tests.shared.command import ran
from tests.shared.compose_stack import (
    COMPOSE,
    SIZES,
    MissingVariableError,
    assignments,
    environment_of,
    fleet_services,
    stack,
    variables_used,
)

pytestmark = pytest.mark.gate

ROOT = COMPOSE.parent
FILES = ("compose.yaml", "compose.gpu.yaml")
SECRETS = [name for name, value in assignments(COMPOSE / ".env.example").items() if not value]
UNITS = {"s": 1, "m": 60}
BYTES = {"k": 10, "m": 20, "g": 30}


@pytest.fixture(scope="module", params=SIZES)
def variables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def services(variables: dict[str, str]) -> dict[str, Any]:
    return dict(stack(variables)["services"])


def seconds(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]]


def size(text: str) -> int:
    return int(text.rstrip("BbKkMmGg")) << BYTES[text.lower().rstrip("b")[-1]]


@pytest.mark.parametrize("file", FILES)
def test_the_specification_of_compose_admits_each_file(file: str) -> None:
    arguments = ("--builtin-schema", "vendor.compose-spec", str(COMPOSE / file))
    told = ran(sys.executable, "-m", "check_jsonschema", *arguments)
    assert told.returncode == 0, told.stdout


@pytest.mark.parametrize("missing", SECRETS)
def test_without_a_secret_compose_says_how_to_make_it(missing: str) -> None:
    variables = dict.fromkeys(SECRETS, "given") | {missing: ""}
    with pytest.raises(MissingVariableError, match=rf"{missing} is missing a value: run \./new-env\.sh"):
        stack(variables)


def test_what_is_read_is_in_the_example_and_nothing_else() -> None:
    used = {name for file in FILES for name, _ in variables_used(file)}
    assert used == assignments(COMPOSE / ".env.example").keys()


def test_without_a_size_a_fleet_is_small(tmp_path: Path) -> None:
    small = environment_of("small", tmp_path)
    defaults = {name: value for file in FILES for name, value in variables_used(file) if value is not None}
    assert defaults == {name: small[name] for name in small.keys() - SECRETS}


def test_every_secret_is_fresh_and_one_that_is_in_use_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, other = (environment_of("small", tmp_path / name) for name in ("one", "other"))
    made = [found[name] for found in (one, other) for name in SECRETS]
    assert len(set(made)) == 2 * len(SECRETS)
    assert all(len(secret) >= 32 for secret in made)
    assert (tmp_path / "one" / "compose" / ".env").stat().st_mode & 0o077 == 0
    refused = ran(tmp_path / "one" / "compose" / "new-env.sh")
    assert refused.returncode == 1
    assert "passwords are those of the databases" in refused.stderr


def test_every_image_is_pinned_and_ours_has_the_version_of_this_code(services: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = {service["image"] for service in fleet_services({"services": services}).values()}
    others = {service["image"] for service in services.values()} - ours
    assert {image.rpartition(":")[2] for image in ours} == {version}
    assert all(re.search(r":v?\d+\.\d+(\.\d+)?(-\w+)?$", image) for image in others)


def test_ports_are_on_loopback_alone_and_of_no_worker(services: dict[str, Any]) -> None:
    open_to = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert open_to.keys() == {"postgres", "redis", "flower", "gateway", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for port in chain(*open_to.values()))


def test_who_reads_documents_reaches_nothing_but_the_stores(variables: dict[str, str]) -> None:
    read = stack(variables)
    inside = {name for name, network in read["networks"].items() if network.get("internal")}
    assert set(read["services"]["engine"]["networks"]) <= inside
    assert set(read["services"]["upkeep"]["networks"]) <= inside
    assert "stores" not in read["services"]["grafana"]["networks"]


def test_no_container_has_rights_that_it_does_not_need(services: dict[str, Any]) -> None:
    flower = services["flower"]
    assert not flower["volumes"]
    assert not flower["environment"].keys() & {"PECIA_DATABASE_URL", "PECIA_PAYLOAD_URL"}
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc"}
    for service in fleet_services({"services": services}).values():
        assert service["read_only"] is True


def test_every_setting_is_one_of_pecias_and_workers_get_time_to_stop(variables: dict[str, str]) -> None:
    for service in fleet_services(stack(variables, "compose.gpu.yaml")).values():
        assert service["environment"].keys() <= known_names() | {"OTEL_EXPORTER_OTLP_ENDPOINT", "TMPDIR"}
        drain = service["environment"].get("PECIA_DRAIN_TIMEOUT", 0)
        assert timedelta(seconds=seconds(service["stop_grace_period"])) >= timedelta(seconds=drain + 10)


def test_memory_is_enough_for_what_each_holds(variables: dict[str, str], services: dict[str, Any]) -> None:
    def limit(name: str) -> int:
        return size(services[name]["deploy"]["resources"]["limits"]["memory"])

    def processes(name: str, kind: str) -> int:
        return int(services[name]["environment"][f"PECIA_{kind}_PROCESSES"])

    gib = 2**30
    assert limit("redis") >= 2 * size(variables["REDIS_MAXMEMORY"])
    assert limit("postgres") >= 3 * size(variables["POSTGRES_BUFFERS"])
    assert limit("ingest") >= processes("ingest", "DECODE") * 2 * gib
    reading = processes("engine", "ENGINE") * gib // 2
    assert limit("engine") >= reading + processes("engine", "DECODE") * 2 * gib


def test_only_the_engine_differs_where_there_is_a_gpu(variables: dict[str, str]) -> None:
    cpu, gpu = stack(variables)["services"], stack(variables, "compose.gpu.yaml")["services"]
    assert [name for name in cpu if cpu[name] != gpu[name]] == ["engine"]
    engine = gpu["engine"]
    assert engine["command"] == cpu["engine"]["command"]
    assert engine["environment"]["PECIA_ENGINE"] == "vllm"
    assert engine["build"]["target"] == "gpu"
    assert engine["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_everything_that_is_mounted_is_there(variables: dict[str, str]) -> None:
    read = stack(variables, "compose.gpu.yaml")
    for service in read["services"].values():
        sources = [volume.split(":")[0] for volume in service.get("volumes", ()) if ":" in volume]
        for source in sources:
            assert source in read["volumes"] or (COMPOSE / source).exists(), source


def test_grafana_finds_its_source_and_its_dashboards(services: dict[str, Any]) -> None:
    mounted = {path: source for source, path, *_ in (v.split(":") for v in services["grafana"]["volumes"])}
    (source,), (provider,) = (
        yaml.safe_load((COMPOSE / "grafana/provisioning" / file).read_text())[key]
        for file, key in (
            ("datasources/prometheus.yml", "datasources"),
            ("dashboards/pecia.yml", "providers"),
        )
    )
    assert source["url"] == "http://prometheus:9090"
    assert list((COMPOSE / mounted[provider["options"]["path"]]).glob("*.json"))
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (COMPOSE / mounted[str(home.parent)] / home.name).exists()


def test_prometheus_asks_every_process_that_has_a_page(services: dict[str, Any]) -> None:
    (job,) = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    workers = [name for name, service in services.items() if service.get("command", [""])[0] == "worker"]
    assert job["job_name"] == "pecia"
    assert found["names"] == workers
    assert f"PECIA_METRICS_PORT={found['port']}" in (COMPOSE / "Dockerfile").read_text()
    assert all("metrics" in services[name]["networks"] for name in (*workers, "prometheus"))


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
    told = ran(Path(sys.executable).with_name("hadolint"), DOCKERFILE)
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
