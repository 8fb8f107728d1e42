import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pecia_schemas.media import PageRanges
from pecia_schemas.tasks import ReadDocument

COUNT = 60
ends = st.integers(1, COUNT)
closed = st.one_of(
    ends.map(lambda page: ({page}, f"{page}")),
    st.tuples(ends, ends).map(
        lambda pair: (set(range(min(pair), max(pair) + 1)), f" {min(pair)} -{max(pair)}")
    ),
)
pieces = st.one_of(closed, ends.map(lambda page: (set(range(page, COUNT + 1)), f"{page}-")))


@given(st.lists(pieces, min_size=1, max_size=8))
def test_ranges_mean_the_pages_as_counted_once_and_in_order(asked: list[tuple[set[int], str]]) -> None:
    wanted = sorted(set[int]().union(*(pages for pages, _ in asked)))
    ranges = PageRanges.parse(",".join(text for _, text in asked))
    assert ranges.missing_from(COUNT) is None
    assert [index + 1 for index in ranges.indices(COUNT)] == wanted
    assert ranges.length(COUNT) == len(wanted)
    assert PageRanges.parse(str(ranges)) == ranges


@given(st.lists(closed, min_size=1, max_size=8), st.integers(0, COUNT))
def test_the_first_page_beyond_a_document_is_found(asked: list[tuple[set[int], str]], count: int) -> None:
    beyond = [page for pages, _ in asked for page in pages if page > count]
    assert PageRanges.parse(",".join(text for _, text in asked)).missing_from(count) == min(
        beyond, default=None
    )


def test_an_open_range_needs_a_page_to_begin_with() -> None:
    assert PageRanges.parse("5-").missing_from(4) == 5
    assert PageRanges.parse("2,5-").missing_from(4) == 5
    assert PageRanges.parse("5-").missing_from(5) is None


def test_the_same_pages_are_the_same_task_however_they_are_written() -> None:
    one = ReadDocument(b"", pages="7, 2-3,1")
    assert one.pages == "1-3,7"
    assert one == ReadDocument(b"", pages="1,2,3,7-7")
    assert ReadDocument(b"", pages="5-,8").pages == "5-"


def test_a_huge_range_costs_nothing_before_the_document_is_known() -> None:
    ranges = PageRanges.parse("1-999999999,5-")
    assert ranges.missing_from(10) is None
    assert ranges.length(10) == 10
    assert PageRanges.parse("1-999999999").missing_from(10) == 11


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "1,", "-3", "3-1", "1--3", "1-2-3", "one", "1;2", "\uff11", "1.5", "9" * 10, "1," * 1_500],
)
def test_what_is_no_range_is_refused_where_the_task_is_made(text: str) -> None:
    with pytest.raises(
        ValidationError, match=r"pages are written like '1-3,7,9-'|pages have at most 2,000 characters"
    ):
        ReadDocument(b"", pages=text)
