"""Arrivals at a simulated engine: all at once, at random, in bursts, or from a file."""

import csv
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pecia_schemas.states import Lane
from pecia_schemas.tasks import PROMPT_TOKENS, DocumentType, image_tokens
from pecia_workers.engines.simulated import drawn_length

A4_AT_150_DPI: Final = (1240, 1754)
PAGE_PROMPT: Final = image_tokens(*A4_AT_150_DPI) + PROMPT_TOKENS
"""Tokens of an A4 page's picture at 150 dpi and of its instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One page that arrives."""

    id: str
    arrived: float
    """Seconds since the start."""
    workload: DocumentType
    prompt: int
    output: int
    """Tokens it will write, unknown to policies."""
    lane: Lane = Lane.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Document types and lanes of pages, by weight."""

    types: Mapping[DocumentType, float] = field(default_factory=lambda: {DocumentType.MIXED: 1.0})
    lanes: Mapping[Lane, float] = field(default_factory=lambda: {Lane.NORMAL: 1.0})


def drawn(arrivals: Sequence[float], mix: Mix, seed: int) -> list[Request]:
    """Return an A4 page for each arrival time, drawn from the mix; deterministic for a seed."""
    rng = random.Random(seed)  # noqa: S311  a workload, no secret
    types = rng.choices(list(mix.types), list(mix.types.values()), k=len(arrivals))
    lanes = rng.choices(list(mix.lanes), list(mix.lanes.values()), k=len(arrivals))
    return [
        Request(
            id=str(number),
            arrived=arrived,
            workload=workload,
            prompt=PAGE_PROMPT,
            output=drawn_length(str(number), workload, seed=seed),
            lane=lane,
        )
        for number, (arrived, workload, lane) in enumerate(zip(arrivals, types, lanes, strict=True))
    ]


BURST: Final = 50
"""Pages that arrive together, as one document."""


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Return independent arrival times, `rate` a second on average."""
    rng = random.Random(f"poisson:{seed}")  # noqa: S311  a workload, no secret
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


def bursts(count: int, rate: float, size: int = BURST) -> list[float]:
    """Return arrival times of groups of `size`, evenly spaced, `rate` a second on average."""
    return [number // size * (size / rate) for number in range(count)]


class TraceError(ValueError):
    """A trace file cannot be read; the message names the line."""


class _Line(BaseModel):
    """One request of a trace."""

    model_config = ConfigDict(extra="forbid")

    arrived: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    workload: DocumentType = Field(DocumentType.MIXED, alias="document_type")
    lane: Lane = Lane.NORMAL
    prompt: Annotated[int, Field(ge=1)] = PAGE_PROMPT
    output: Annotated[int | None, Field(ge=1)] = None


def read_trace(path: Path, seed: int) -> list[Request]:
    """Return the requests of a file: CSV with a header, or JSON lines; only `arrived` (seconds) is required.

    Further columns: document_type, lane, prompt and output (tokens; drawn from the document type if absent).
    Raises `TraceError`, and `OSError` if there is no such file.
    """
    requests = []
    is_csv = path.suffix == ".csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows: Iterable[Any] = csv.DictReader(file) if is_csv else file
        for number, row in enumerate(rows, start=2 if is_csv else 1):
            try:
                values = json.loads(row) if isinstance(row, str) else row
                if not isinstance(values, dict):
                    raise TraceError(f"Line {number} of the trace is no JSON object.")
                given = {name: value for name, value in values.items() if value not in ("", None)}
                line = _Line.model_validate(given)
            except json.JSONDecodeError:
                raise TraceError(f"Line {number} of the trace is not JSON.") from None
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                raise TraceError(f"Line {number} of the trace: {where}: {first['msg']}.") from None
            output = line.output or drawn_length(str(number), line.workload, seed=seed)
            requests.append(Request(id=str(number), output=output, **line.model_dump(exclude={"output"})))
    if not requests:
        raise TraceError("The trace has no line.")
    return requests
