"""Which words of a page are values: numbers, units, doses, dates and names, where one wrong sign does harm."""

from __future__ import annotations

import re
from typing import Final

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
