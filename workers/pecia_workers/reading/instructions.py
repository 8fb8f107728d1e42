"""What a language model is asked to do with a page: a file per document type and language, in `prompts/`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from pecia_schemas import DocumentType

_WRITTEN: Final = frozenset({"en", "ko", "zh"})
_OTHERWISE: Final = "en"


@cache
def instruction_for(document_type: DocumentType, language: str | None) -> str:
    """Return the instruction in the page's language; in English for an unknown one or one that has none."""
    written = language if language in _WRITTEN else _OTHERWISE
    prompt = files("pecia_workers.reading") / "prompts" / f"{document_type}.{written}.md"
    return prompt.read_text(encoding="utf-8").strip()
