"""The formulas of the product's requirements, with the figures that they are checked against there."""

import pytest

from pecia_workers.engines.models import KvShape, kv_bytes
from pecia_workers.simulation import figures

BATCH = (2.0, 5.0, 1.0, 8.0)


def test_a_static_batch_of_2_5_1_and_8_seconds_does_half_a_request_a_second_half_idle() -> None:
    assert figures.static_throughput(BATCH) == 0.5
    assert figures.static_utilisation(BATCH) == 0.5


def test_a_refill_at_once_gains_the_longest_by_the_mean() -> None:
    assert figures.continuous_throughput(4, 4.0) == 1.0
    assert figures.gain_over_static(BATCH) == 2.0


def test_a_batch_of_one_does_not_wait_and_no_batch_longer_than_its_window() -> None:
    assert figures.mean_batch_wait(1, 10, 0.1) == 0
    assert figures.mean_batch_wait(9, 100, 0.1) == pytest.approx(0.04)
    assert figures.mean_batch_wait(9, 1, 0.1) == 0.1


def test_padding_is_what_is_missing_to_the_longest() -> None:
    assert figures.padding_waste([100, 50, 50]) == pytest.approx(1 / 3)
    assert figures.padding_waste([7, 7]) == 0


def test_thirty_a_second_at_two_seconds_are_sixty_in_flight_and_eight_gpus_of_eight() -> None:
    assert figures.in_flight(30, 2) == 60
    assert figures.engines_for(60, 8) == 8
    assert figures.engines_for(64, 8) == 8


@pytest.mark.parametrize(("prompt", "chunks"), [(1, 1), (512, 1), (513, 2), (2836, 6)])
def test_a_prompt_is_read_in_as_many_chunks_as_it_begins(prompt: int, chunks: int) -> None:
    assert figures.prefill_chunks(prompt, 512) == chunks


@pytest.mark.parametrize(
    ("shape", "tokens", "sequences", "megabytes"),
    [
        (KvShape(layers=6, kv_heads=12, head_dim=64, dtype_bytes=4), 100, 4, 14.75),
        (KvShape(layers=32, kv_heads=32, head_dim=128), 2048, 32, 34_359.7),
        (KvShape(layers=32, kv_heads=32, head_dim=128), 2048, 1, 1_073.7),
        (KvShape(layers=28, kv_heads=4, head_dim=128), 1, 1, 0.057_344),
    ],
    ids=["small", "batch of 32", "hidden 4096", "grouped queries"],
)
def test_the_cache_takes_its_bytes(shape: KvShape, tokens: int, sequences: int, megabytes: float) -> None:
    assert kv_bytes(shape, tokens, sequences) / 1e6 == pytest.approx(megabytes, rel=0.003)
