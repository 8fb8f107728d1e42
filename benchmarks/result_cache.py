"""The same pages twice through a whole fleet: what the engine does the second time, and how long it takes.

Caveats. The second time is everything but the engine: payload store, queue, decoding, hashing, Postgres. How much
sooner it ends depends on how slow the engine is: here it is the CPU engine on small pages, so a full page, or a page of
a language model, gains more. No two pages of a submit are alike.
"""

import argparse
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track

from harness.report import Report, Table, parser
from harness.servers import fleet
from pecia import Client, Page, ReadDocument, UsageFigures
from pecia_schemas.settings import WorkerSettings

DONE_S = 900
TIMES = ("first", "second")


@dataclass(frozen=True, kw_only=True)
class Submit:
    """What came of all pages once."""

    seconds: float
    """From the submit to the last committed row."""
    engine_pages: int
    """Pages that the engine was asked about."""
    tokens: int
    """Prompt and output, by the accounts."""
    saved: int


def main() -> None:
    """Run the rounds, each on a fleet of its own, and print the medians."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=100)
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    rounds = [_round(arguments.pages) for _ in track(range(arguments.rounds), console=Console(stderr=True))]
    _report(rounds, arguments).tell(as_json=arguments.json)


def _round(count: int) -> list[Submit]:
    with fleet(WorkerSettings(flower_port=0)) as (_, client, scratch):
        pages = [_draw(scratch / f"{number}.png", number) for number in range(count)]
        client.submit(ReadDocument(_draw(scratch / "warm.png", -1))).wait(DONE_S)
        (first, texts), (second, again) = _submit(client, pages), _submit(client, pages)
    if texts != again:
        message = "the second submit read something else"
        raise RuntimeError(message)
    return [first, second]


def _draw(path: Path, number: int) -> Path:
    """Draw a small page, no two alike."""
    page = Image.new("RGB", (600, 200), "white")
    font = ImageFont.load_default(26)
    for line, text in enumerate((f"Patient {number:04}", "Amoxicillin 500 mg", "three times a day")):
        ImageDraw.Draw(page).text((30, 20 + 55 * line), text, fill="black", font=font)
    page.save(path)
    return path


def _submit(client: Client, pages: list[Path]) -> tuple[Submit, list[str]]:
    before = client.usage().total
    started = perf_counter()
    group = client.submit_many(ReadDocument(page) for page in pages)
    group.wait(DONE_S)
    seconds = perf_counter() - started
    read: list[Page] = [page for document in group.results() for page in document.pages]
    after = client.usage().total
    submit = Submit(
        seconds=seconds,
        engine_pages=(after.parts - after.reused) - (before.parts - before.reused),
        tokens=_tokens(after) - _tokens(before),
        saved=after.saved - before.saved,
    )
    return submit, [page.text for page in read]


def _tokens(figures: UsageFigures) -> int:
    return figures.tokens.prompt + figures.tokens.output


def _report(rounds: list[list[Submit]], arguments: argparse.Namespace) -> Report:
    ratio = statistics.median(first.seconds / second.seconds for first, second in rounds)
    medians = [
        Submit(
            **{
                name: statistics.median(getattr(submits[at], name) for submits in rounds)
                for name in Submit.__dataclass_fields__
            }
        )
        for at in range(len(TIMES))
    ]
    rows = [
        [
            time,
            f"{median.seconds:.2f}",
            *(f"{count:,.0f}" for count in (median.engine_pages, median.tokens, median.saved)),
        ]
        for time, median in zip(TIMES, medians, strict=True)
    ]
    return Report(
        tables=[
            Table(
                headings=("submit", "seconds", "pages the engine read", "tokens", "tokens saved"),
                rows=rows,
                title=f"{arguments.pages} pages, {arguments.rounds} rounds",
            )
        ],
        notes=[f"The second took 1/{ratio:.1f} of the time (median of the rounds)."],
        figures={
            "pages": arguments.pages,
            "ratio": ratio,
            **{time: asdict(median) for time, median in zip(TIMES, medians, strict=True)},
        },
    )


if __name__ == "__main__":
    main()
