"""Which words of a page are values, and how sure a language model was of what it wrote."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator, Sequence
from typing import Final

from pecia_schemas.blocks import Doubt, DoubtReason

_UNIT: Final = re.compile(
    r"(?i:[µμnkmdc]?(g|l|mol|eq|iu|m)|mcg|i?u|µl|fl|pg|mm[hH]g|kcal|bpm|ppm|k?pa|h|hrs?|min|sec|ms|days?|wk|wks|mo|yrs?"
    r"|tabs?|caps?|drops?|puffs?|gtt|ml|cc|prn|bid|tid|qid|qd|qds|od|bd|tds|hs|stat|po|iv|im|sc)"
    r"|[%‰°]|°?[CF]|[£$€¥₩]|RM|USD|EUR|GBP|KRW|CNY"
)
_MONTH: Final = re.compile(
    r"(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?"
    r"|dec(ember)?|mon(day)?|tue(sday)?|wed(nesday)?|thu(rsday)?|fri(day)?|sat(urday)?|sun(day)?)"
)
_BEFORE_A_NAME: Final = re.compile(
    r"(?i:\b(mr|mrs|ms|miss|dr|prof|sir|madam|herr|frau|dear|(sur|first |last |full )?name|patient|physician|doctor"
    r"|signed( by)?|consultant|nurse|attn|attention|invoice to|bill to|ship to)\b|姓名|患者|医生|성명|이름|환자)"
    r"[.:\uff1a]?\s*"
    r"([A-Z][\w.'-]*,?\s*)?$"  # of a first and a last name, the second
)


def is_value(word: str, before: str = "") -> bool:
    """Return whether a word is a value, by itself or by the text before it in its line."""
    bare = word.strip(".,;:()[]")
    if any(map(str.isdigit, bare)):
        return True
    if _MONTH.fullmatch(bare) or is_unit(bare):
        return True
    return bool(bare) and not bare[0].islower() and _BEFORE_A_NAME.search(before) is not None


def is_unit(word: str) -> bool:
    """Return whether a word is a unit, or several with strokes between them."""
    return all(map(_UNIT.fullmatch, word.split("/")))


_LEAST_OF_A_VALUE: Final = math.log(0.6)
_LEAST_OF_A_WORD: Final = math.log(0.2)
"""Log-probability of its least likely token below which a word is doubtful: of a word of prose less is asked, for often
another token would have changed the layout alone."""
_MARKUP: Final = "|*#`_<>"


def sureness(tokens: Sequence[tuple[str, float]]) -> float | None:
    """Return the geometric mean of the tokens' probabilities, 0 to 1; None without tokens."""
    return min(1.0, math.exp(sum(logged for _, logged in tokens) / len(tokens))) if tokens else None


def doubtful_words(tokens: Sequence[tuple[str, float]], written: str) -> tuple[Doubt, ...]:
    """Return the words of what was written that the model was not sure of, in its order, without their places.

    Special tokens, and characters that a tokenizer has torn into several tokens, are not in what was written.
    """
    found: list[Doubt] = []
    before = ""
    for word, least in _words(tokens):
        text = word.strip(_MARKUP + string.whitespace)
        on_value = is_value(text, before)
        if (
            least < (_LEAST_OF_A_VALUE if on_value else _LEAST_OF_A_WORD)
            and any(map(str.isalnum, text))
            and text in written
        ):
            found.append(Doubt(reason=DoubtReason.LOW_CONFIDENCE, text=text, on_value=on_value))
        before = "" if word.endswith("\n") else f"{before}{text} "
    return tuple(found)


def _words(tokens: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield each word, with the white space after it, and the log-probability of its least likely token."""
    word, least = "", 0.0
    for text, logged in tokens:
        for piece in text.splitlines(keepends=True):
            for part in _apart(piece):
                if word and word[-1].isspace() and not part[0].isspace():
                    yield word, least
                    word, least = "", 0.0
                word += part
                least = min(least, logged) if not part.isspace() else least
    if word.strip():
        yield word, least


def _apart(text: str) -> Iterator[str]:
    """Yield runs of white space, and what is between them."""
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or text[end].isspace() != text[start].isspace():
            yield text[start:end]
            start = end
