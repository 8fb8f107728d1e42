"""What `fields=` asked for, as JSON lines: one object for each page, for tables and databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pecia.formats import missing
from pecia_schemas.results import Document, Page, PageFailure


def of_document(document: Document) -> str:
    """Return a line for each page."""
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines(document))


def lines(document: Document) -> Iterator[dict[str, Any]]:
    """Yield the pages' fields, None where a page has none, and the failure's code of a page that is missing."""
    for one in missing.pages(document):
        yield {"page": one.number, **_line(one)}


def _line(one: Page | PageFailure) -> dict[str, Any]:
    if isinstance(one, PageFailure):
        return {"fields": None, "failure": one.failure.code}
    return {"fields": one.fields, "verdict": one.verdict}
