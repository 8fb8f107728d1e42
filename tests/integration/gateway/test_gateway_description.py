"""The gateway's description of itself: it validates, and no request has an answer that it does not tell."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import pecia
from pecia.gateway import problems
from pecia.gateway.app import make_app
from pecia.gateway.identity import GatewayConfiguration
from tests.shared.gateways import Gateway

SETTINGS = GatewayConfiguration().with_stores(
    database_url="postgresql://x/x", redis_url="redis://x", payload_url="x"
)
DESCRIPTION: dict[str, Any] = make_app(SETTINGS).openapi()
"""It is the same for every fleet."""
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MOST_URL = 8_000
"""Longer ones are refused by the server, before the gateway sees them."""
CODE = re.compile("[a-z_]+")
RAISING = {"ProblemError", "problem", "too_many", "full", "wrong"}
"""Functions that take the code of a problem, but for the underscore that some begin with."""
OPERATIONS = [(path, method) for path, methods in DESCRIPTION["paths"].items() for method in methods]


def test_it_is_openapi_3_1() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(DESCRIPTION).validate()


def test_its_examples_are_of_their_schemas() -> None:
    examples = [
        (name, example)
        for name, schema in DESCRIPTION["components"]["schemas"].items()
        for example in schema.get("examples", ())
    ]
    assert {"Submission", "Submitted", "Job", "Problem"} <= {name for name, _ in examples}
    for name, example in examples:
        schema = {"$ref": f"#/components/schemas/{name}", "components": DESCRIPTION["components"]}
        Draft202012Validator(schema).validate(example)


def test_every_code_of_a_problem_is_described() -> None:
    raised = {"batch_not_found", "file_not_found", *(code for _, code in problems._OF_ERRORS.values())}
    for file in Path(pecia.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).lstrip("_") in RAISING:
                texts = [word.value for word in call.args[:2] if isinstance(word, ast.Constant)]
                raised.update(text for text in texts if isinstance(text, str) and CODE.fullmatch(text))
    assert raised | {"not_found", "method_not_allowed", "results", "uploads"} == problems.CODES.keys()
    assert all(f"| `{code}` |" in DESCRIPTION["info"]["description"] for code in problems.CODES)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_operation_says_what_it_does_and_who_may(path: str, method: str) -> None:
    operation = DESCRIPTION["paths"][path][method]
    assert not operation["summary"].istitle()
    needs_key = path.startswith(("/v1", "/openai/v1"))
    assert operation["description"] if needs_key else True
    assert ("security" in operation) == needs_key


@pytest.mark.parametrize(("path", "method"), [one for one in OPERATIONS if one[0] != "/healthz"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_described(gateway: Gateway, path: str, method: str, mode: GenerationMode) -> None:
    """Whatever fits the description and whatever does not: no fault, no status, media type or body but those it has."""
    operation = SCHEMA[path][method]
    _, shown = gateway.key()
    with requests.Session() as session:

        @given(operation.as_strategy(mode))
        @settings(
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ]
        )
        def ask(case: Case[Any]) -> None:
            assume(
                len(str(requests.Request(**case.as_transport_kwargs(base_url=gateway.url)).prepare().url))
                < MOST_URL
            )
            case.call_and_validate(
                base_url=gateway.url,
                session=session,
                headers={"Authorization": f"Bearer {shown}"},
                checks=CHECKS,
            )

        ask()
