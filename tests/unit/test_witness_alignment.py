"""What is written laid upon what a witness saw, in whatever order and with whatever spaces."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pecia_workers.witness.alignment import Alignment, align
from pecia_workers.witness.tokens import Comparison, Token, tokens_of

LINES = (
    "Laboratory report of 12.03.2024 for Eva Brandt",
    "Sodium 140 mmol/l 135 - 145",
    "Potassium 4.2 mmol/l 3.5 - 5.1",
    "Glucose 95 mg/dl 70 - 110",
    "Creatinine 0.98 mg/dl 0.5 - 1.2",
    "Ibuprofen 400 mg, 2 tablets for 10 days",
    "Ramipril 5 mg, 1 tablets for 30 days",
    "Torasemide 10 mg, 1 tablets for 30 days",
    "The patient was seen with cough and fever for three days.",
    "Please see your family doctor within 7 days and bring this letter.",
    "12",
)
EXACT, RECOGNISED = Comparison(exact=True), Comparison(exact=False)


def tokens(lines: Sequence[str]) -> list[Token]:
    return [token for number, line in enumerate(lines) for token in tokens_of(line, number)]


def aligned(
    written: Sequence[str], seen: Sequence[str] = LINES, comparison: Comparison = RECOGNISED
) -> Alignment:
    return align(tokens(written), tokens(seen), comparison)


def agreeing(found: Alignment) -> list[str]:
    return [
        token.text for n, token in enumerate(found.written) if found.to_seen[n] and n not in found.differs
    ]


def missing(found: Alignment) -> list[str]:
    return [token.text for n, token in enumerate(found.seen) if not found.to_written[n]]


def lost(found: Alignment) -> list[str]:
    return [token.text for n, token in enumerate(found.written) if not found.to_seen[n]]


def differing(found: Alignment) -> list[tuple[str, str]]:
    return [
        (found.written[n].text, " ".join(found.seen[other].text for other in found.to_seen[n]))
        for n in sorted(found.differs)
    ]


@given(st.permutations(LINES), st.booleans())
def test_lines_in_any_order_agree(lines: list[str], exact: bool) -> None:
    found = aligned(lines, comparison=EXACT if exact else RECOGNISED)
    assert (lost(found), missing(found), differing(found)) == ([], [], [])


@given(st.permutations(LINES), st.data())
def test_a_swapped_digit_differs_and_nothing_else(lines: list[str], data: st.DataObject) -> None:
    line = data.draw(st.sampled_from([one for one in lines if len(one) > 2 and any(map(str.isdigit, one))]))
    place = data.draw(st.sampled_from([n for n, sign in enumerate(line) if sign.isdigit()]))
    digit = data.draw(st.sampled_from([one for one in "0123456789" if one != line[place]]))
    false = line[:place] + digit + line[place + 1 :]
    (at,) = (n for n, token in enumerate(tokens([false])) if token.start <= place < token.end)

    found = aligned([false if one == line else one for one in lines])

    number = sum(len(tokens([one])) for one in lines[: lines.index(line)]) + at
    assert number in found.differs or not found.to_seen[number]
    assert len(lost(found)) + len(found.differs) == 1


@given(st.permutations(LINES), st.sampled_from([line for line in LINES if len(line) > 2]))
def test_a_line_that_was_left_out_is_missing_whole(lines: list[str], line: str) -> None:
    found = aligned([one for one in lines if one != line])
    assert missing(found) == [token.text for token in tokens([line])]
    assert lost(found) == []


@given(st.permutations(LINES), st.integers(0, len(LINES)))
def test_no_number_of_a_row_that_was_made_up_is_on_the_page(lines: list[str], place: int) -> None:
    made_up = "Digoxin 25 mg, 3 tablets for 14 days"
    found = aligned([*lines[:place], made_up, *lines[place:]])
    start = len(tokens(lines[:place]))
    own = list(range(start, start + len(tokens([made_up]))))
    assert not [found.written[n].text for n in own if found.to_seen[n] and found.written[n].is_number]
    assert {n for n in range(len(found.written)) if not found.to_seen[n]} <= set(own)


@given(st.lists(st.integers(1, len(LINES[8]) - 1), max_size=4))
def test_a_paragraph_in_lines_of_its_own_agrees(cuts: list[int]) -> None:
    text = " ".join((LINES[8], LINES[9]))
    places = sorted({0, *(text.find(" ", cut) for cut in cuts), len(text)})
    found = aligned([text[start:end] for start, end in itertools.pairwise(places)], LINES[8:10])
    assert (lost(found), missing(found)) == ([], [])


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("was seen with fever", "was seenwith fever"),
        ("the treatment was long", "the treat ment was long"),
        ("modern O2 therapy", "rnodern 02 therapy"),
        ("weight 12.5 kg today", "weight l2.5 kg today"),
        ("weight 12.5 kg today", "weight 12. 5 kg today"),
        ("paid 1,250.00 EUR then", "paid 1250.00 EUR then"),
        ("paid 2,50 EUR then", "paid 2.50 EUR then"),
        ("the café in Zürich was", "the cafe in Zurich was"),
        ("Prescription of medicines", "Prescriptlon of mediclnes"),
    ],
)
def test_what_a_recogniser_confuses_agrees(written: str, seen: str) -> None:
    found = aligned([written], [seen])
    if "O2" in written:  # a code, which is excused no sign
        assert "modern" in agreeing(found)
        assert "therapy" in agreeing(found)
    else:
        assert (lost(found), differing(found), missing(found)) == ([], [], [])


@pytest.mark.parametrize(
    ("written", "seen", "apart"),
    [
        ("dose 100 mg daily now", "dose 100 mcg daily now", ("mg", "mcg")),
        ("code AB12 of today then", "code A812 of today then", None),
        ("Patient: Meyer was here", "Patient: Meier was here", ("Meyer", "Meier")),
        ("result -5 in the end", "result 5 in the end", ("-5", "5")),
        ("on 12.03.2024 he came in", "on 12.08.2024 he came in", ("12.03.2024", "12.08.2024")),
    ],
)
def test_values_are_excused_nothing(written: str, seen: str, apart: tuple[str, str] | None) -> None:
    found = aligned([written], [seen])
    assert differing(found) == [apart] if apart else lost(found) or differing(found)


def test_a_long_word_with_a_capital_takes_no_time_of_its_own() -> None:
    assert [token.text for token in tokens_of("A" * 5_000 + "!")] == ["A" * 5_000]


def test_an_exact_witness_excuses_no_letter() -> None:
    found = aligned(["the modern treatment was long"], ["the rnodern treatment was long"], EXACT)
    assert "modern" not in agreeing(found)


@given(st.text(alphabet="abcdefgh 0123456789.,", min_size=1, max_size=200))
def test_noise_is_laid_upon_nothing_twice(text: str) -> None:
    assume(tokens([text]))
    found = aligned([text])
    used = [other for to in found.to_seen for other in to]
    joined = {to for to in found.to_seen if to}
    assert len({other for to in joined for other in to}) == sum(map(len, joined))
    assert all(found.to_written[other] for other in used)


def test_a_letter_that_stands_alone_is_of_no_word_beside_it() -> None:
    assert differing(aligned(["ibuprofen I"], ["ibuprofen 1"])) == [("I", "1")]
    assert lost(aligned(["ibu profen"], ["ibuprofen"])) == []
