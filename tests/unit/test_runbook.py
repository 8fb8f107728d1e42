"""What the runbook has people type exists, and it leads to where it says."""

import re
from typing import Any

import pytest
import typer
import yaml

from pecia.cli.app import app
from pecia_schemas.settings import known_names
from tests.shared.compose_stack import COMPOSE, assignments, environment_of, stack
from tests.shared.runbook import ALERTS, RUNBOOK, Typed, typed

PAGE = RUNBOOK.read_text()
SOMETHING = "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"
PLACEHOLDERS = {"CODE": "engine_error"}
NOT_OURS = {"COMPOSE_FILE"}
VERBS = {"build", "exec", "kill", "logs", "ps", "restart", "rm", "run", "stop", "up"}

COMMAND: Any = typer.main.get_command(app)


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return stack(environment_of("small", tmp_path_factory.mktemp("runbook")))


def verb_of(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return a command of `pecia` and its arguments."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "get_command") and rest:
        found = command.get_command(typer.Context(command), rest.pop(0))
        assert found, f"pecia knows no {' '.join(words)}"
        command = found
    return command, rest


@pytest.mark.parametrize(
    "command",
    [one for file in (RUNBOOK, ALERTS) for one in typed(file) if one.pecia],
    ids=lambda one: one.line.strip(),
)
def test_pecia_knows_every_verb_and_option(command: Typed) -> None:
    verb, arguments = verb_of(command.pecia)
    meant = [
        PLACEHOLDERS.get(word, SOMETHING) if re.fullmatch(r"[A-Z]+", word) else word for word in arguments
    ]
    # A verb that is only named needs no argument.
    verb.make_context("pecia", meant, resilient_parsing=not meant)


@pytest.mark.parametrize("command", [one for one in typed() if one.compose], ids=lambda one: one.line.strip())
def test_compose_knows_every_service(command: Typed, compose: dict[str, Any]) -> None:
    assert command.compose[0] in VERBS
    names = compose["services"].keys()
    if command.service:
        assert command.service in names
        return
    told = re.sub(r"--tail \S+", "", " ".join(command.compose[1:])).replace("--scale ", "")
    assert {word.partition("=")[0] for word in told.split() if word[0] != "-"} <= names


def test_every_alert_is_there_once_and_leads_to_its_entry() -> None:
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    table = re.findall(r"^\| \[(\w+)\]\((\S+)\)", PAGE, re.MULTILINE)
    assert [name for name, _ in table] == alerts
    assert all(target == f"../docs/alerts.md#{name.lower()}" for name, target in table)


def test_every_name_is_a_setting_or_stands_in_the_env_file() -> None:
    names = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE)) - NOT_OURS
    assert names <= known_names() | assignments(COMPOSE / ".env.example").keys()
    assert {"PECIA_FLOWER_PASSWORD", "GRAFANA_PASSWORD"} <= names


def test_ports_volumes_and_times_are_those_of_the_stack(compose: dict[str, Any]) -> None:
    ports = {port for one in compose["services"].values() for port in one.get("ports", ())}
    for port in re.findall(r"http://127\.0\.0\.1:(\d+)", PAGE):
        assert any(published.startswith(f"127.0.0.1:{port}:") for published in ports)
    for volume in re.findall(r"docker volume rm (\w+)", PAGE):
        assert volume.removeprefix(f"{compose['name']}_") in compose["volumes"]
    drain = compose["services"]["engine"]["environment"]["PECIA_DRAIN_TIMEOUT"]
    assert f"`PECIA_DRAIN_TIMEOUT` ({drain} s)" in PAGE
