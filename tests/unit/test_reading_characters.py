"""Lines as they were recognised, character by character."""

import pytest

from pecia_workers.reading.characters import (
    Character,
    agreed,
    sureness_of,
    text_of_characters,
    words_and_spaces,
)


def line(*words: tuple[str, float]) -> list[Character]:
    """Words, each with the confidence of its last letter; a space between them."""
    found: list[Character] = []
    for text, confidence in words:
        if found:
            found.append(Character(" ", -1.0, 1.0))
        found += [Character(one, 0.0, 1.0) for one in text[:-1]] + [Character(text[-1], 0.0, confidence)]
    return found


def read(characters: list[Character]) -> list[tuple[str, float]]:
    words = [word for word in words_and_spaces(characters) if not word[0].text.isspace()]
    return [(text_of_characters(word), sureness_of(word)) for word in words]


def test_a_word_is_as_sure_as_its_weakest_letter_or_digit() -> None:
    assert sureness_of(line(("1.5", 0.6))) == 0.6
    assert sureness_of(line(("-5", 0.9))[:1] + line(("x", 0.95))) == 0.95


@pytest.mark.parametrize("around", ["fee,", "(x)", "no_", "“a”"])
def test_punctuation_at_the_ends_of_a_word_says_nothing_of_its_sureness(around: str) -> None:
    assert sureness_of([Character(one, 0.0, 0.9 if one.isalpha() else 0.1) for one in around]) == 0.9


def test_punctuation_between_digits_does_and_a_space_does_not() -> None:
    assert sureness_of([Character("2", 0, 1.0), Character(",", 0, 0.4), Character("8", 0, 1.0)]) == 0.4
    assert sureness_of([Character(" ", -1.0, 0.3)]) == 1.0


def test_a_word_that_two_readings_agree_on_is_as_sure_as_the_surer_is() -> None:
    assert read(agreed(line(("late", 1.0), ("fee", 0.6)), line(("late", 0.7), ("fee", 0.98)))) == [
        ("late", 1.0),
        ("fee", 0.98),
    ]


def test_of_two_readings_of_a_word_the_surer_stands() -> None:
    found = agreed(line(("at", 1.0), ("Facebookl", 0.7)), line(("at", 1.0), ("Facebook!", 0.9)))
    assert text_of_characters(found) == "at Facebook!"


FIRST = line(("12.50", 0.7), ("12.50", 1.0), ("RM", 0.6))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIRST, line(("12.5012.50", 0.99), ("RM", 0.5))),
        (FIRST, line(("12.5", 0.99), ("0", 0.99), ("12.50", 0.99), ("RM", 0.5))),
        (FIRST, line(("RM", 0.5))),
        (line(("Yes_or", 0.7), ("No_", 1.0)), line(("Yes", 0.99), ("or", 0.99), ("No", 0.99))),
    ],
    ids=["joined", "parted and joined", "lost", "parted"],
)
def test_a_second_reading_that_joins_or_parts_words_or_loses_them_changes_nothing(
    first: list[Character], second: list[Character]
) -> None:
    assert agreed(first, second) == first
