"""What a language model is asked to do with a page: a file per document type and language, in `prompts/`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pecia_schemas import DocumentType
from pecia_workers.engines.reader_cards import Card

_WRITTEN: Final = frozenset({"en", "ko", "zh"})
_OTHERWISE: Final = "en"


def instruction_for(document_type: DocumentType, language: str | None) -> str:
    """Return the instruction in the page's language; in English for an unknown one or one that has none."""
    return _written(document_type, language if language in _WRITTEN else _OTHERWISE)


def page_instruction(card: Card, document_type: DocumentType, language: str | None) -> str:
    """Return what the model of a reader card is told about a page."""
    return instruction_for(document_type, language) if card.prompt is None else card.prompt


def fields_instruction(schema: Mapping[str, Any], language: str | None) -> str:
    """Return how to fill the fields of a page. It holds the schema: decoding by it alone hides its descriptions."""
    words = _written("fields", language if language in _WRITTEN else _OTHERWISE)
    return words.replace("{schema}", json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


@cache
def _written(what: str, language: str) -> str:
    prompt = files("pecia_workers.reading") / "prompts" / f"{what}.{language}.md"
    return prompt.read_text(encoding="utf-8").strip()
