"""Writes `docs/reference/`, Markdown that is read as it stands, and the wheel's OpenAPI document: `make docs`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from textwrap import fill
from types import ModuleType
from typing import Any, Final

from pecia.gateway.app import make_app
from pecia.gateway.identity import GatewayConfiguration
from pecia.gateway.problems import CODES

FOLDER: Final = Path(__file__).parent / "reference"
OPENAPI: Final = FOLDER.parents[1] / "producer" / "pecia" / "gateway" / "openapi.json"
_OURS: Final = ("pecia", "pecia_schemas")
_CONTENTS: Final[dict[str, tuple[str, ...]]] = {
    "client": (
        "# Client",
        *("pecia:Client", "pecia:Job", "pecia:JobGroup", "pecia:AsyncClient", "pecia:AsyncJob"),
        *("pecia:AsyncJobGroup", "pecia:ClientSettings", "pecia.webhooks:verify"),
        "## What they return",
        *("pecia:JobState", "pecia:Lane", "pecia:JobEvent", "pecia:Progress", "pecia:JobNotice"),
        *("pecia:NoticeType", "pecia:Usage", "pecia:UsageFigures", "pecia:Percentiles", "pecia:DeadPart"),
        *("pecia:Endpoint", "pecia:Delivery", "pecia:DeliveryAttempt", "pecia:DeliveryState"),
        *(
            "pecia:AuditEntry",
            "pecia:AuditAction",
            "pecia:FoundPage",
            "pecia:Submission",
            "pecia:Batch",
            "pecia:Counts",
            "pecia:Exported",
        ),
        *("pecia:ExportFormat", "pecia:Erasure", "pecia:DocumentFate"),
        "## In tests",
        *("pecia.testing:FakeFleet", "pecia.testing:Submitted", "pecia.testing:Callback"),
        *("pecia.testing:ScriptError", "pecia.testing:NotFakedError"),
    ),
    "tasks": (
        "# Tasks",
        *("pecia:Task", "pecia_schemas.tasks:ReadPages", "pecia:ReadDocument", "pecia:ReadBundle"),
        *("pecia:CaptionVideo", "pecia:DocumentType", "pecia:Prefer"),
        *(
            "pecia:CaptionStyle",
            "pecia:Preset",
            "pecia:GenerationOptions",
            "pecia:Webhook",
            "pecia:Preparation",
            "pecia:Witness",
        ),
    ),
    "results": (
        "# Results",
        "What is on a page, and results as files in many forms: [results](../results.md).",
        *("pecia.formats:render", "pecia:Format"),
        "## Models",
        "pecia_schemas.results",
        "## What is on a page, where it stands, and who else read it",
        "pecia_schemas.blocks",
        "## The documents of a bundle",
        "pecia:Bundle",
        "pecia_schemas.bundles",
    ),
    "errors": (
        "# Errors",
        "What the client raises. Why a job or a page failed is a [failure code](../failure-codes.md).",
        "pecia.errors",
        *("pecia:Failure", "pecia:FailureCode"),
    ),
    "problems": (
        "# Problems",
        "The `code` of each problem that a [gateway](../gateway.md#errors) answers with.",
        "| code | when it comes |\n|---|---|\n"
        + "\n".join(f"| `{code}` | {meaning} |" for code, meaning in CODES.items()),
    ),
}
"""Of each page: headings and sentences, names as `module:name`, and modules, whose public names are all told."""


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page's file and its text."""
    for name, contents in _CONTENTS.items():
        head = "<!-- Written by docs/reference.py from the code: `make docs`. -->"
        pieces = [head, *(piece for entry in contents for piece in _told(entry))]
        text = re.sub(r"^(- .*)\n\n(?=- )", r"\1\n", "\n\n".join(filter(None, pieces)), flags=re.MULTILINE)
        yield FOLDER / f"{name}.md", text + "\n"


def described() -> str:
    """Return the OpenAPI document of a gateway, which is the same for every fleet."""
    stores = {"database_url": "postgresql://x/x", "redis_url": "redis://x", "payload_url": "x"}
    app = make_app(GatewayConfiguration().with_stores(**stores))
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


def _told(entry: str) -> Iterator[str]:
    if entry.startswith("#") or " " in entry:
        yield entry
    elif ":" in entry:
        yield from _object(resolve_name(entry), entry.partition(":")[2])
    else:
        module = import_module(entry)
        yield _text(module.__doc__)
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from _object(getattr(module, node.name), node.name)


def _object(thing: Any, name: str) -> Iterator[str]:
    """Yield the Markdown of a class or a function."""
    yield f"## {name}"
    node = _node(thing)
    if isinstance(node, ast.FunctionDef):
        yield from _function(node)
        return
    bases = ", ".join(map(ast.unparse, node.bases))
    yield f"```python\nclass {name}{f'({bases})' if bases else ''}\n```"
    yield _text(ast.get_docstring(node))
    members: dict[str, list[str]] = {}
    for kind in (kind for kind in thing.__mro__ if kind.__module__.partition(".")[0] in _OURS):
        for member, told in _members(_node(kind), name):
            members.setdefault(member, told)
    for told in members.values():
        yield from told


def _members(node: Any, owner: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and the Markdown of a class's public members, in their order."""
    for statement, follows in zip(node.body, [*node.body[1:], None], strict=True):
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not name.startswith("_"):
                decorators = {ast.unparse(one) for one in statement.decorator_list}
                if "overload" not in decorators:
                    yield (
                        name,
                        [f"### {owner}.{name}", *_function(statement, is_property="property" in decorators)],
                    )
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if not name.startswith("_") and name != "model_config":
                    text = _text(follows.value.value) if _is_text(follows) else ""
                    yield name, [f"- `{_line(statement)}`{': ' if text else ''}{text.replace(chr(10), ' ')}"]


def _is_text(statement: ast.stmt | None) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _function(node: Any, *, is_property: bool = False) -> Iterator[str]:
    given = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    is_async = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = (
        f"{node.name}{returns.replace(' ->', ':')}"
        if is_property
        else f"{is_async}{node.name}({given}){returns}"
    )
    wrapped = fill(line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    yield f"```python\n{wrapped}\n```"
    yield _text(ast.get_docstring(node))


def _line(statement: ast.stmt) -> str:
    """Return a field and its default, without what else pydantic is given."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call):
        given = {option.arg: option.value for option in statement.value.keywords}
        default = next(iter(statement.value.args), given.get("default"))
        statement = ast.AnnAssign(statement.target, statement.annotation, default, simple=1)
    return " ".join(ast.unparse(statement).split())


def _text(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").replace("::\n", ":\n")


def _node(thing: Any) -> Any:
    module = sys.modules[thing.__module__]
    return next(node for node in _tree(module).body if getattr(node, "name", None) == thing.__name__)


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
    OPENAPI.write_text(described(), encoding="utf-8")
