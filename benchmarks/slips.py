"""Errors that a model makes by itself, and how many of them are doubted: drawn slips, read by a small model.

Each slip goes the way of a page: decoder, real vLLM with log-probabilities, verdict, and the CPU engine as its witness.
A wrong run is a stretch of characters that are not the slip's, of which at most one between is right. It is doubted
if a doubt names its word, or what stands on the slip instead. Runs that differ in signs or capitals alone are counted
apart, for these are not compared.

BENCH_READER names another checkpoint, BENCH_FONTS the directory of the fonts (Debian: fonts-dejavu-core,
fonts-liberation2, fonts-liberation, fonts-freefont-ttf, fonts-crosextra-carlito, fonts-noto-mono). It runs in the
environment of `make bench-engine`.

Caveats. The model is small and reads nothing but slips. A third of their words are letters and digits by lot.
"""

import asyncio
import math
import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, cast

from PIL import Image
from rapidfuzz.distance import Levenshtein

from harness.engines import READER, drawn_slips
from harness.report import Report, Table, parser
from harness.slips import Slip
from pecia import Page, ReadDocument, Verdict
from pecia_schemas.blocks import Doubt
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Witness, task_to_json
from pecia_workers.engines.registry import create_engine, create_witness
from pecia_workers.media.decoder import Decoder, Spool
from pecia_workers.protocol.base import Capabilities, Engine, EngineRequest, Generation
from pecia_workers.reading.caching import ResultCache
from pecia_workers.reading.page import ReadPage
from pecia_workers.witness.tokens import tokens_of
from pecia_workers.witness.witnesses import Witnesses
from tests.shared.parts import claimed_part

SETS = {"clean": (20261126, 40, 0.0), "spoilt": (20261127, 80, 0.7), "unseen": (20261128, 40, 0.7)}
"""Seed, number and hardness. No threshold was chosen by the last."""
AT_ONCE = 16
SHORT = 3
"""Characters of a wrong run that is of single letters and digits."""
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 1.0)
"""Of a word's probability, that of its least likely token."""
_PIECE = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d_]+")


def main() -> None:
    """Read the slips and print what came of them."""
    made = parser(__doc__)
    made.add_argument(
        "--no-witness", action="store_true", help="doubts of the model's own probabilities alone"
    )
    arguments = made.parse_args()
    read = asyncio.run(_read(Witness.NONE if arguments.no_witness else Witness.AUTO))
    scores = {name: _score(pages) for name, pages in read.items()}
    kinds = sorted({kind for score in scores.values() for kind in score.runs})
    columns = [score.shown(kinds) for score in scores.values()]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    words = [word for pages in read.values() for page in pages for word in page.words()]
    kept = [word for word in words if word.run <= SHORT]
    title = f"AUC {_auc(kept):.3f}; with the words of longer wrong runs {_auc(words):.3f}"
    tables = [
        Table(headings=("", *scores), rows=rows),
        Table(
            headings=("word's probability", "words", "wrong", "said", "right"), rows=_bins(kept), title=title
        ),
    ]
    figures = {name: score.figures() for name, score in scores.items()}
    Report(tables=tables, figures=figures).tell(as_json=arguments.json)


class Word(NamedTuple):
    """A word of an answer, and the wrong characters beside it."""

    probability: float
    run: int
    """Characters of the longest wrong run that touches it; 0: it is right."""


@dataclass(frozen=True)
class Read:
    """A slip, the page that came of it, and the answer with its log-probabilities."""

    slip: Slip
    page: Page
    generation: Generation

    def words(self) -> Iterator[Word]:
        """Yield the words of the answer, each as likely as its least likely token.

        Those of longer runs say little: a line that is skipped, or read twice, is written with confidence.
        """
        shown = [(text, logged) for text, logged in self.generation.tokens if text]
        text = "".join(text for text, _ in shown)
        starts = [0, *accumulate(len(piece) for piece, _ in shown)]
        runs = wrong_runs(self.slip.text, text)
        for word in re.finditer(r"\S+", text):
            start, end = word.span()
            least = min(logged for (_, logged), at in zip(shown, starts, strict=False) if start <= at < end)
            lengths = [
                max(run[1] - run[0], run[3] - run[2])
                for run in runs
                if run[2] < end and start < max(run[3], run[2] + 1)
            ]
            yield Word(math.exp(least), max(lengths, default=0))


class _Recorder:
    """The engine, and what it answered first to each part."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.answers: dict[object, Generation] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(self, request: EngineRequest) -> Generation:
        generation = await self._engine.generate(request)
        self.answers.setdefault(request.part, generation)
        return generation


async def _read(choice: Witness) -> dict[str, list[Read]]:
    settings = WorkerSettings(
        engine="vllm",
        model=os.environ.get("BENCH_READER") or str(READER),
        max_model_len=2048,
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=2048,
        enforce_eager=True,
        kv_cache_bytes=1 << 28,
        log_level="warning",
    )
    engine, witness, decoder = create_engine(settings), create_witness(settings, 1), Decoder(settings)
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        store = PayloadStore.open(scratch)
        recorder, places = _Recorder(engine), asyncio.Semaphore(AT_ONCE)
        witnesses = Witnesses(choice, witness, 1)
        witnesses.spare = AT_ONCE  # a benchmark may wait
        read_page = ReadPage(
            Spool(store, Path(scratch)), decoder, recorder, settings, ResultCache.off(), witnesses=witnesses
        )

        async def read(slip: Slip) -> Read:
            file = BytesIO()
            Image.fromarray(slip.pixels).save(file, "PNG")
            task = task_to_json(ReadDocument(b""), store.put(file.getvalue()))
            part = claimed_part(stored_task=task)
            async with places:
                done = await read_page(part)
            return Read(slip, cast("Page", done.content), recorder.answers[part.id])

        try:
            for starting in (engine, witness, decoder):
                await starting.start()
            return {
                name: await asyncio.gather(*map(read, drawn_slips(seed, count, hardness=hardness)))
                for name, (seed, count, hardness) in SETS.items()
            }
        finally:
            for ending in (decoder, witness, engine):
                await ending.stop()


def _plain(text: str) -> str:
    """Return the text with single spaces and no empty lines."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def wrong_runs(true: str, written: str) -> list[tuple[int, int, int, int]]:
    """Return where the two texts differ: start and end in either; a single right character ends no run."""
    runs: list[tuple[int, int, int, int]] = []
    for change in Levenshtein.opcodes(true, written):
        if change.tag == "equal":
            continue
        run = (change.src_start, change.src_end, change.dest_start, change.dest_end)
        if runs and run[0] - runs[-1][1] <= 1 and run[2] - runs[-1][3] <= 1:
            run = (runs[-1][0], run[1], runs[-1][2], run[3])
            runs.pop()
        runs.append(run)
    return runs


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text)))


def kind_of(true: str, written: str) -> str:
    """Return what kind of error it is that one stands for the other."""
    ours, theirs = _letters(true), _letters(written)
    if ours.casefold() == theirs.casefold():
        return "signs" if ours == theirs else "capitals"
    if not theirs:
        return "dropped"
    if not ours:
        return "invented"
    if max(len(true), len(written)) > SHORT:
        return "replaced"
    return "digits" if any(map(str.isdigit, true + written)) else "letters"


def _touched(text: str, start: int, end: int, pattern: str | re.Pattern[str] = r"\S+") -> set[str]:
    """Return the words that a stretch of the text touches."""
    return {
        found.group() for found in re.finditer(pattern, text) if found.start() <= end and start <= found.end()
    }


def doubts_on(
    true: str, written: str, run: tuple[int, int, int, int], doubts: Sequence[Doubt]
) -> list[Doubt]:
    """Return the doubts that name a word of the run, or what the witness reads in its place."""
    ours = _touched(written, run[2], run[3]) | _touched(written, run[2], run[3], _PIECE)
    theirs = {word.casefold() for word in _touched(true, run[0], run[1], _PIECE)}

    def names_it(doubt: Doubt) -> bool:
        named = doubt.text or ""
        if (
            named in ours
            or ours & {*named.split()}
            or (len(named) > 1 and any(named in word for word in ours))
        ):
            return True
        return not named and bool(theirs & {word.casefold() for word in _PIECE.findall(doubt.other or "")})

    return [doubt for doubt in doubts if names_it(doubt)]


def is_on_value(text: str, start: int, end: int) -> bool:
    """Return whether a stretch of the text touches a value."""
    at = 0
    for line in text.split("\n"):
        if any(one.is_value and at + one.start <= end and start <= at + one.end for one in tokens_of(line)):
            return True
        at += len(line) + 1
    return False


@dataclass
class Score:
    """What became of a set of slips."""

    slips: int = 0
    right: int = 0
    right_ok: int = 0
    wrong_value: int = 0
    wrong_value_ok: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    doubted: Counter[str] = field(default_factory=Counter)
    by_witness: int = 0
    """Of the runs that are not of signs or capitals alone."""

    def of(self, *kinds: str) -> str:
        return f"{sum(self.doubted[kind] for kind in kinds)} of {sum(self.runs[kind] for kind in kinds)}"

    def shown(self, kinds: Sequence[str]) -> dict[str, str]:
        """Return the figures by their labels."""
        compared = [kind for kind in kinds if kind not in ("signs", "capitals")]
        return {
            "slips": str(self.slips),
            "pages without an error that are ok": f"{self.right_ok} of {self.right}",
            "pages with a wrong value that are ok": f"{self.wrong_value_ok} of {self.wrong_value}",
            "wrong runs in doubt, signs and capitals aside": self.of(*compared),
            "of these by the witness": str(self.by_witness),
            **{kind: self.of(kind) for kind in kinds},
        }

    def figures(self) -> dict[str, object]:
        return {**vars(self), "runs": dict(self.runs), "doubted": dict(self.doubted)}


def _score(pages: Sequence[Read]) -> Score:
    score = Score(slips=len(pages))
    for read in pages:
        true, written, doubts = _plain(read.slip.text), _plain(read.page.text), read.page.doubts
        runs, is_ok = wrong_runs(true, written), read.page.verdict is Verdict.OK
        score.right += not runs
        score.right_ok += not runs and is_ok
        has_wrong_value = False
        for run in runs:
            kind = kind_of(true[run[0] : run[1]], written[run[2] : run[3]])
            naming = doubts_on(true, written, run, doubts)
            score.runs[kind] += 1
            score.doubted[kind] += bool(naming)
            if kind not in ("signs", "capitals"):
                score.by_witness += any(doubt.reason != "low_confidence" for doubt in naming)
                has_wrong_value |= is_on_value(true, *run[:2]) or is_on_value(written, *run[2:])
        score.wrong_value += has_wrong_value
        score.wrong_value_ok += has_wrong_value and is_ok
    return score


def _bins(words: Sequence[Word]) -> list[list[str]]:
    """Return how many words lie in each bin, how many of them are wrong, and their probability as said and as it is."""
    rows = []
    for low, high in pairwise(BINS):
        inside = [word for word in words if low < word.probability <= high]
        wrong = sum(word.run > 0 for word in inside)
        said, right = (
            (f"{fmean(word.probability for word in inside):.2f}", f"{1 - wrong / len(inside):.2f}")
            if inside
            else ("", "")
        )
        rows.append([f"{low:g} to {high:g}", str(len(inside)), str(wrong), said, right])
    return rows


def _auc(words: Sequence[Word]) -> float:
    """Return how often a right word is likelier than a wrong one."""
    wrong = [word.probability for word in words if word.run]
    right = [word.probability for word in words if not word.run]
    above = sum((one > other) + (one == other) / 2 for one in right for other in wrong)
    return above / (len(right) * len(wrong))


if __name__ == "__main__":
    main()
