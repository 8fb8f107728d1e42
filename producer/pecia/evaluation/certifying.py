"""Estimates from reviewed pages how often accepted values are wrong, with confidence bounds.

A value is accepted if nothing doubts it. Errors on one page depend on each other, so one accepted value is drawn at
random from each page, and the rate is that of the drawn values: each page counts once, however many values it has.
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
"""Probability that any rate of a report is outside its bounds; the same for the thresholds."""
THRESHOLDS: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_VALUE: Final = re.compile(r"\d")
_STEPS: Final = 50


@dataclass(frozen=True, slots=True)
class ReviewedValue:
    """A value that was accepted as read."""

    confidence: float | None
    wrong: bool
    """Whether a reviewer wrote another value."""


class Rate(BaseModel):
    """Number of wrong values among the drawn ones, and the confidence interval of the rate."""

    model_config = ConfigDict(frozen=True)

    values: int
    """Number of drawn values, one of each page."""
    wrong: int
    lower: float
    upper: float


class Certificate(BaseModel):
    """Error rates of one type of documents."""

    model_config = ConfigDict(frozen=True)

    document_type: str
    rate: Rate
    threshold: float | None
    """The lowest tried confidence from which the rate is below the bound, or None if there is none."""
    above: Rate | None
    """The rate of values with at least that confidence."""


def certificates(
    pages: Mapping[str, Sequence[Sequence[ReviewedValue]]], *, bound: float, seed: int
) -> list[Certificate]:
    """Return the certificate of each type of document, from the accepted values of its pages.

    All rates together are right in 95 of 100 draws, and so are all thresholds together: the error is divided among the
    types, and for thresholds, of which several are tried, also among these (Bonferroni).
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
    """Return, for each page, the first value in its random order with at least this confidence."""
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
    """Return the upper confidence bound of the rate, with this error probability.

    It is the greatest p at which so few errors still have that probability: P(X <= wrong) = error, X binomial
    (Clopper and Pearson, Biometrika 26 (1934), 404-413). It equals the quantile 1 - error of the beta distribution
    with wrong + 1 and values - wrong.
    """
    if wrong >= values:
        return 1.0
    return _bisected(lambda rate: at_most(wrong, values, rate) > error)


@lru_cache(maxsize=65_536)
def lower_bound(wrong: int, values: int, error: float) -> float:
    """Return the lower confidence bound of the rate, with this error probability: P(X >= wrong) = error."""
    if wrong == 0:
        return 0.0
    return _bisected(lambda rate: 1 - at_most(wrong - 1, values, rate) < error)


def at_most(wrong: int, values: int, rate: float) -> float:
    """Return the probability of at most so many errors: a sum of the binomial distribution."""
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
    """Return the values of a page that were accepted as read, compared with the reviewed page.

    The values are the leaves of the page's fields, or, on a page without fields, the words with a digit.
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
