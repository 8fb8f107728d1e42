"""When pages arrive, and what a trace file may say."""

from itertools import pairwise
from pathlib import Path

import pytest

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.simulation.requests import TraceError, all_at_once, bursts, poisson, read_trace


def test_random_arrivals_have_their_rate_and_a_spread_of_their_own() -> None:
    moments = poisson(5_000, 4.0, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1), (
        "exponential"
    )


def test_bursts_arrive_together_and_keep_the_rate() -> None:
    assert bursts(5, rate=2.0, size=2) == [0, 0, 1, 1, 2]
    assert all_at_once(3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", "arrived,document_type,lane,output\n0.5,chart,urgent,1200\n2,,,\n"),
        (
            "trace.jsonl",
            '{"arrived": 0.5, "document_type": "chart", "lane": "urgent", "output": 1200}\n{"arrived": 2}\n',
        ),
    ],
)
def test_a_trace_is_read_from_a_table_or_lines(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)

    first, second = read_trace(path, seed=1)

    assert (first.arrived, first.workload, first.lane, first.output) == (
        0.5,
        DocumentType.CHART,
        Lane.URGENT,
        1200,
    )
    assert (second.arrived, second.workload, second.lane) == (2, DocumentType.MIXED, Lane.NORMAL)
    assert second.output > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line"),
        ("not json\n", "Line 1 of the trace is not JSON"),
        ("[1]\n", "Line 1 of the trace is no JSON object"),
        ('{"arrived": 1}\n{"arrived": -1}\n', "Line 2 of the trace: arrived"),
        ('{"arrived": 1, "patient": "x"}\n', "Line 1 of the trace: patient"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path, seed=1)
