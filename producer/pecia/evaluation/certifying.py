"""How often accepted values are wrong, estimated from reviewed pages, with bounds that hold.

A value is accepted if nothing doubts it. Errors on one page are not independent of each other, so of each page one
accepted value is drawn at random, and the rate is that of such values: each page counts once, however much is on it.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from random import Random
from typing import Final

from pydantic import BaseModel, ConfigDict

from pecia.review.layout import leaves_of, targets_of, tokens_of, tokens_under
from pecia_schemas.blocks import Standing
from pecia_schemas.results import Page

ERROR: Final = 0.05
"""How often the rates of a report may be wrong, all of them together; so too its thresholds."""
THRESHOLDS: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_VALUE: Final = re.compile(r"\d")
_STEPS: Final = 50


@dataclass(frozen=True, slots=True)
class ReviewedValue:
    """A value that was accepted as it was read."""

    confidence: float | None
    wrong: bool
    """Whether a person wrote something else."""


class Rate(BaseModel):
    """How many of the values that were drawn are wrong, and between which rates that of all lies."""

    model_config = ConfigDict(frozen=True)

    values: int
    """One of each page."""
    wrong: int
    lower: float
    upper: float


class Certificate(BaseModel):
    """What is known of one type of documents."""

    model_config = ConfigDict(frozen=True)

    document_type: str
    rate: Rate
    threshold: float | None
    """The lowest confidence from which on the rate is below the bound; None: none of those that were tried."""
    above: Rate | None
    """The rate of values with at least that confidence."""


def certificates(
    pages: Mapping[str, Sequence[Sequence[ReviewedValue]]], *, bound: float, seed: int
) -> list[Certificate]:
    """Return what the accepted values of pages, by type of document, tell.

    All rates together are right in 95 of 100 draws, and all thresholds together: the error is shared out among the
    types and, as a threshold that serves is searched for, among all that are tried (Bonferroni).
    """
    share = ERROR / max(len(pages), 1)
    found: list[Certificate] = []
    for name, of_pages in sorted(pages.items()):
        random = Random(f"{seed} {name}")  # noqa: S311  no secret
        shuffled = [random.sample(values, len(values)) for values in of_pages]
        tried = [(threshold, _drawn(shuffled, threshold)) for threshold in THRESHOLDS]
        rates = [
            (threshold, _rate(values, share / len(THRESHOLDS), upper_alone=True))
            for threshold, values in tried
        ]
        threshold, above = next(((one, rate) for one, rate in rates if rate.upper <= bound), (None, None))
        rate = _rate(_drawn(shuffled, 0.0), share)
        found.append(Certificate(document_type=name, rate=rate, threshold=threshold, above=above))
    return found


def _drawn(pages: Sequence[Sequence[ReviewedValue]], threshold: float) -> list[ReviewedValue]:
    """Return the first value of each page, in its random order, that is at least so sure."""
    firsts = (
        next((value for value in values if not threshold or (value.confidence or 0.0) >= threshold), None)
        for values in pages
    )
    return [value for value in firsts if value]


def _rate(values: Sequence[ReviewedValue], error: float, *, upper_alone: bool = False) -> Rate:
    wrong, side = sum(value.wrong for value in values), error if upper_alone else error / 2
    return Rate(
        values=len(values),
        wrong=wrong,
        lower=0.0 if upper_alone else lower_bound(wrong, len(values), side),
        upper=upper_bound(wrong, len(values), side),
    )


@lru_cache(maxsize=65_536)
def upper_bound(wrong: int, values: int, error: float) -> float:
    """Return the rate that is exceeded with no more than this probability of error.

    It is the greatest p at which so few errors have still that probability: P(X <= wrong) = error, X binomial
    (Clopper and Pearson, Biometrika 26 (1934), 404-413). The same is the quantile 1 - error of the beta distribution
    with wrong + 1 and values - wrong.
    """
    if wrong >= values:
        return 1.0
    return _bisected(lambda rate: at_most(wrong, values, rate) > error)


@lru_cache(maxsize=65_536)
def lower_bound(wrong: int, values: int, error: float) -> float:
    """Return the rate that is fallen short of with no more than this probability: P(X >= wrong) = error."""
    if wrong == 0:
        return 0.0
    return _bisected(lambda rate: 1 - at_most(wrong - 1, values, rate) < error)


def at_most(wrong: int, values: int, rate: float) -> float:
    """Return the probability of at most so many errors: the sum of the binomial distribution."""
    if not 0 < rate < 1:
        return float(rate <= 0 or wrong >= values)
    whole, log, other = math.lgamma(values + 1), math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(values - k + 1) + k * log + (values - k) * other)
        for k in range(wrong + 1)
    )


def _bisected(is_below: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def values_of(original: Page, revised: Page) -> list[ReviewedValue]:
    """Return the values of a page that were accepted as they were read, beside what a person made of the page.

    They are the leaves of its fields; of a page without fields the words with a digit in them.
    """
    if not original.fields:
        return list(_words(original, revised))
    grounded = {leaf.path: leaf for leaf in original.grounding}
    now = dict(leaves_of(revised.fields or {}))
    found: list[ReviewedValue] = []
    for path, value in leaves_of(original.fields):
        leaf = grounded.get(path)
        if value is not None and not (leaf and leaf.standing in (Standing.DIFFERS, Standing.NOT_ON_PAGE)):
            found.append(ReviewedValue(leaf.confidence if leaf else None, now.get(path) != value))
    return found


def _words(original: Page, revised: Page) -> Iterator[ReviewedValue]:
    doubted = {
        (block, place)
        for target in targets_of(original)
        if target and (found := tokens_under(original, target.name))
        for block, places in [found]
        for place in places
    }
    tokens = [
        (token, (number, place))
        for number, block in enumerate(original.blocks)
        for place, token in enumerate(tokens_of(block))
    ]
    now = [token.text for block in revised.blocks for token in tokens_of(block)]
    matcher = SequenceMatcher(None, [token.text for token, _ in tokens], now, autojunk=False)
    right = {first + step for first, _, size in matcher.get_matching_blocks() for step in range(size)}
    for number, (token, place) in enumerate(tokens):
        if _VALUE.search(token.text) and place not in doubted:
            yield ReviewedValue(token.confidence, number not in right)
