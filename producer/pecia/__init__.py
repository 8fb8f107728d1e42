"""Pecia's client: submit documents to a fleet that reads them, and get their text.

`__init__.pyi` lists the public names. Each is imported at its first use, so that `import pecia` costs almost
nothing.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """Return the module of each public name."""
    import ast  # noqa: PLC0415  not for a bare `import pecia`

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(_homes()[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
