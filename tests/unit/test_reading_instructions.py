"""What a language model is asked to do with a page."""

import itertools

import pytest

from pecia_schemas.tasks import DocumentType
from pecia_workers.reading.page import instruction_for


@pytest.mark.parametrize("document_type", DocumentType)
@pytest.mark.parametrize(("language", "word"), [("en", "Transcribe"), ("ko", "마크다운"), ("zh", "转写")])
def test_every_kind_of_document_has_its_words_in_every_language(
    document_type: DocumentType, language: str, word: str
) -> None:
    assert word in instruction_for(document_type, language)
    assert "Markdown" in instruction_for(document_type, language) or language == "ko"


@pytest.mark.parametrize("language", [None, "fr"])
def test_any_other_page_is_asked_for_in_english(language: str | None) -> None:
    english = instruction_for(DocumentType.CHART, "en")
    assert instruction_for(DocumentType.CHART, language) == english
    kinds = itertools.product(DocumentType, ("en", "ko", "zh"))
    assert len({instruction_for(*kind) for kind in kinds}) == 3 * len(DocumentType), "no two are the same"
