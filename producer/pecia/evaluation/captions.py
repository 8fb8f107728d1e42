"""How a video's captions compare with texts that describe it well. Needs `pecia[eval]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from nltk.stem.porter import PorterStemmer
from nltk.translate.meteor_score import meteor_score
from pydantic import BaseModel, ConfigDict
from rouge_score.rouge_scorer import RougeScorer

from pecia_schemas.results import Captions

_WORD: Final = re.compile(r"\w+")


class CaptionScore(BaseModel):
    """The captions of one video beside the truth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    rouge_l: float
    """Longest common subsequence of words (ROUGE-L, F1), of the reference that is most alike."""
    meteor: float
    """Words and stems that agree, and their order (METEOR). Synonyms do not count: WordNet is in no wheel."""


class _NoSynonyms:
    def synsets(self, word: str) -> list[object]:  # noqa: ARG002  NLTK's signature
        return []


_NO_SYNONYMS: Final[Any] = _NoSynonyms()


class _Words:
    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def score(captions: Captions | None, references: Sequence[str], *, file: str) -> CaptionScore:
    """Compare the summary of captions, or the only segment's text, with the references; None: they failed."""
    words = _Words()
    text = ""
    if captions:
        pieces = [captions.summary] if captions.summary else captions.segments
        text = "\n".join(piece.text for piece in pieces)
    rouge = RougeScorer(["rougeL"], tokenizer=words).score_multi(references, text)
    meteor = meteor_score(
        [words.tokenize(reference) for reference in references],
        words.tokenize(text),
        stemmer=PorterStemmer(),
        wordnet=_NO_SYNONYMS,
    )
    return CaptionScore(file=file, rouge_l=rouge["rougeL"].fmeasure, meteor=meteor)
