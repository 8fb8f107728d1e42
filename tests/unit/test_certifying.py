"""What reviewed pages say of all pages holds as often as it claims: simulated fleets, of which the truth is known."""

from collections.abc import Callable
from random import Random

import pytest

from pecia import Page
from pecia.evaluation.certifying import (
    THRESHOLDS,
    ReviewedValue,
    at_most,
    certificates,
    lower_bound,
    upper_bound,
    values_of,
)
from pecia_schemas.blocks import Doubt, DoubtReason, Grounding, Standing, plain_blocks

FLEETS, DRAWN, BOUND = 300, 80, 0.1
Pages = list[list[ReviewedValue]]


def honest(random: Random) -> list[ReviewedValue]:
    """A page on which what is less sure is more often wrong."""
    sure = [random.random() for _ in range(random.randint(1, 6))]
    return [ReviewedValue(one, random.random() < 0.3 * (1 - one)) for one in sure]


def clustered(random: Random) -> list[ReviewedValue]:
    """A page that is right, or wrong from top to bottom."""
    wrong = random.random() < 0.09
    return [ReviewedValue(random.random(), wrong) for _ in range(random.randint(1, 12))]


def hardly_worse(random: Random) -> list[ReviewedValue]:
    """A page of a fleet whose rate is above the bound at every confidence: each threshold that is found is wrong."""
    return [ReviewedValue(random.random() ** 0.1, random.random() < BOUND * 1.05) for _ in range(3)]


def rate(pages: Pages, threshold: float = 0.0) -> float:
    """How often a value is wrong that is drawn from a page that is drawn."""
    accepted = [[one.wrong for one in page if (one.confidence or 0) >= threshold] for page in pages]
    shares = [sum(page) / len(page) for page in accepted if page]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("kind", [honest, clustered, hardly_worse])
def test_over_hundreds_of_fleets_the_bounds_hold(kind: Callable[[Random], list[ReviewedValue]]) -> None:
    random = Random(7)  # noqa: S311  the same fleets every time
    fleet = [kind(random) for _ in range(20_000)]
    truth = {threshold: rate(fleet, threshold) for threshold in THRESHOLDS}
    rates = thresholds = 0
    for seed in range(FLEETS):
        (found,) = certificates({"lab_result": random.sample(fleet, DRAWN)}, bound=BOUND, seed=seed)
        rates += found.rate.lower <= truth[0.0] <= found.rate.upper
        thresholds += found.threshold is None or truth[found.threshold] <= BOUND

    assert rates >= 0.95 * FLEETS
    assert thresholds >= 0.95 * FLEETS


def test_a_threshold_is_found_where_there_is_one() -> None:
    pages = [honest(Random(seed)) for seed in range(2_000)]  # noqa: S311  as above
    (found,) = certificates({"invoice": pages}, bound=0.08, seed=1)
    assert found.threshold is not None
    assert 0.7 <= found.threshold <= 0.9
    assert rate(pages, found.threshold) <= 0.08


def test_several_types_share_the_error() -> None:
    pages = [[ReviewedValue(1.0, wrong=False)]] * 100
    alone, beside = (
        certificates(dict.fromkeys(names, pages), bound=0.1, seed=0)[0] for names in ("a", "abc")
    )
    assert alone.rate.upper == pytest.approx(1 - 0.025 ** (1 / 100))
    assert beside.rate.upper == pytest.approx(1 - (0.025 / 3) ** (1 / 100))


def test_the_bounds_are_those_that_tables_have() -> None:
    # Clopper-Pearson, 95 %, two sides: 5 of 20
    assert (lower_bound(5, 20, 0.025), upper_bound(5, 20, 0.025)) == pytest.approx(
        (0.08657, 0.49105), abs=1e-5
    )
    assert at_most(5, 20, 0.49105) == pytest.approx(0.025, abs=1e-5)
    assert (lower_bound(0, 9, 0.025), upper_bound(9, 9, 0.025), upper_bound(0, 0, 0.025)) == (0, 1, 1)


def page(text: str, **more: object) -> Page:
    about = {"number": 1, "verdict": "ok", "width": 9, "height": 9, "engine": "test"}
    return Page.model_validate({**about, "blocks": plain_blocks(text), **more})


def test_accepted_values_are_those_that_nothing_doubts_and_wrong_is_what_a_person_changed() -> None:
    doubt = Doubt(reason=DoubtReason.DISAGREES, text="500", on_value=True)
    read = page("Dose 500 mg for 7 days, 3 times", doubts=(doubt,))
    found = values_of(read, page("Dose 50 mg for 7 days, 2 times"))
    assert [one.wrong for one in found] == [False, True]


def test_fields_are_the_values_of_a_page_that_has_them() -> None:
    leaves = [
        Grounding(path="/total", value=12, standing=Standing.AGREES, confidence=0.9),
        Grounding(path="/number", value="7-1", standing=Standing.DIFFERS, confidence=0.0),
        Grounding(path="/date", value="x", standing=Standing.AGREES, confidence=0.8),
    ]
    fields = {"total": 12, "number": "7-1", "date": "x", "paid": None}
    found = values_of(page("12", fields=fields, grounding=leaves), page("12", fields=fields | {"date": "y"}))
    assert found == [ReviewedValue(0.9, wrong=False), ReviewedValue(0.8, wrong=True)]
