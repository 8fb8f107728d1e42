import pytest

from pecia_schemas.tasks import DocumentType
from pecia_workers.local.samples import accuracy, sample_document


def test_the_same_seed_draws_the_same_pixels_and_another_seed_other_text() -> None:
    first, again, other = (sample_document(DocumentType.LAB_RESULT, seed) for seed in (1, 1, 2))
    assert first.pages[0].image.tobytes() == again.pages[0].image.tobytes()
    assert first.text == again.text != other.text


@pytest.mark.parametrize(
    ("read", "known", "expected"),
    [("ab c\nd", "a bcd", 1.0), ("abxd", "abcd", 0.75), ("", "abcd", 0.0), ("", "", 1.0), ("x", "", 0.0)],
)
def test_accuracy_counts_wrong_characters_and_no_white_space(read: str, known: str, expected: float) -> None:
    assert accuracy(read, known) == expected
