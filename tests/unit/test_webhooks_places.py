"""Who gets the places of a webhook worker."""

from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.outgoing.places import Places, Standing, Turn

PLACES = 64


def turns(number: int, standing: Standing, tenant: str = "") -> list[Turn]:
    return [Turn(f"{tenant}.{standing}.{each}", tenant, standing) for each in range(number)]


def fill(places: Places, waiting: list[Turn]) -> int:
    """Take all places that these may have; return how many."""
    by_name, before = {turn.receiver: turn for turn in waiting}, places.taken
    while allotted := places.allot(waiting, most=10):
        for receiver, number in allotted.items():
            for _ in range(number):
                places.take(by_name[receiver])
    return places.taken - before


def test_what_is_new_or_fails_leaves_a_quarter_to_those_that_are_well() -> None:
    places = Places(PLACES, each=4)
    for tenant in map(str, range(40)):
        fill(places, turns(50, Standing.NEW, tenant) + turns(50, Standing.FAILING, tenant))
    assert places.taken <= PLACES * 3 // 4
    assert fill(places, turns(1, Standing.WELL)) == 4


def test_what_fails_takes_no_place_of_what_is_new() -> None:
    places = Places(PLACES, each=4)
    fill(places, turns(1_000, Standing.FAILING))
    assert fill(places, turns(10, Standing.NEW)) == 10


def test_a_receiver_that_is_new_or_fails_has_one_place_and_gets_more_when_it_is_well() -> None:
    for standing, most in ((Standing.NEW, 1), (Standing.FAILING, 1), (Standing.WELL, 4)):
        assert fill(Places(PLACES, each=4), turns(1, standing)) == most


def test_a_tenant_leaves_as_many_places_as_it_takes() -> None:
    places = Places(PLACES, each=4)
    assert fill(places, turns(100, Standing.WELL, "greedy")) == PLACES // 2
    assert fill(places, turns(100, Standing.WELL, "second")) == PLACES // 4
    assert fill(places, turns(1, Standing.WELL, "modest")) == 4


def test_all_get_a_first_place_before_any_gets_a_second_and_those_that_are_well_before_all() -> None:
    waiting = turns(2, Standing.FAILING) + turns(3, Standing.WELL)
    assert Places(PLACES, each=4).allot(waiting, most=5) == {".well.0": 2, ".well.1": 2, ".well.2": 1}


@given(
    st.lists(
        st.builds(
            Turn, st.sampled_from("abcdefgh"), st.sampled_from(["", "one", "two"]), st.sampled_from(Standing)
        ),
        max_size=40,
    )
)
def test_no_share_is_exceeded_and_every_place_comes_back(waiting: list[Turn]) -> None:
    places = Places(16, each=2)
    taken = []
    for turn in filter(places.admits, waiting):
        places.take(turn)
        taken.append(turn)
    assert len(taken) == places.taken <= 16
    assert sum(turn.standing is Standing.NEW for turn in taken) <= 8
    assert sum(turn.standing is Standing.FAILING for turn in taken) <= 4
    for turn in taken:
        places.release(turn)
    assert fill(places, turns(100, Standing.NEW)) == 4
