"""Measure how likely the CPU engine's words are wrong, and write it down: `layout/calibration.toml`.

Pages that the tests draw: records full of values (`tests/shared/value_pages.py`: eight faces, three resolutions, five
qualities of paper), and ordinary ones (`exact_pages.py`, `witnessed_pages.py`). And the files below `BENCH_PAGES` whose
text is known (docs/evaluation.md): of a PDF the first page, clean and worn, one at 150 dots per inch, one at 200. Four
logistic models are fitted: whether a word is another one that looks alike, whether it is wrong otherwise, and both
after a second look. The threshold is that at which fewest pages that are `ok` have a wrong value, while no more of the
right ones are flagged than `--flagged`. Prints the figures on pages that the models were not fitted on: records and
ordinary pages of other seeds, and every second file.

Caveats. A word is right if the truth of its page has it, wherever it stands.
"""

import argparse
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image

from pecia.evaluation.metrics import values, words
from pecia.evaluation.truth import exhibits
from pecia_schemas.media import HEAD_BYTES, MediaType, sniff
from pecia_workers.engines.cpu import networks, rapidocr
from pecia_workers.layout import alike
from pecia_workers.layout.alike import MODELS, Calibration, Logistic, calibration
from pecia_workers.layout.characters import Character, text_of_characters
from pecia_workers.layout.glyph_shapes import Glyph
from pecia_workers.layout.lines import is_value
from tests.shared.exact_pages import english_pages
from tests.shared.value_pages import QUALITIES, value_pages
from tests.shared.witnessed_pages import KINDS, drawn_page

_ALIKE: Any = alike
_READER: Any = rapidocr
"""Modules in which what they import is replaced."""
_TARGET: Final = Path(alike.__file__).with_name("calibration.toml")
_DRAWN, _ORDINARY = 20, 3
_UNSEEN_DRAWN, _UNSEEN_ORDINARY = 1000, 100
"""Where the seeds of pages begin that the models are not fitted on."""
_DPI: Final = (150, 200)
_WORN: Final = ("scan", "jpeg")
"""Qualities of the pages of PDFs, in turn."""
_RIDGE, _STEPS = 0.3, 30
_UNLIKELY: Final = 1e-3
"""Of another reading, up to which a second look says no more of it, as in `layout/alike.py`."""
_THRESHOLDS: Final = tuple(round(step / 50, 2) for step in range(2, 26))
_LOOK_AGAIN: Final = 0.03
"""Probability of being wrong from which words are looked at again here, to choose the threshold above it."""
_DOUBTFUL_WORDS: Final = 0.01
"""Share of a page's words expected to be wrong from which it is flagged, as in `reading/ladder.py`."""


class RecordedWord(NamedTuple):
    """A word as it came to be settled."""

    characters: Sequence[Character]
    signs: Sequence[Glyph | None]
    height: int
    again: Sequence[Character] | None = None
    """What a second look read."""

    def settled(self) -> alike.Settled:
        """Return it as the engine reads it."""
        read = alike.settled(self.characters, self.signs, self.height)
        if self.again is not None and 1 - read.confidence >= _ALIKE.calibration().doubtful:
            return alike.confirmed(read, self.again)
        return read


@dataclass
class ReadPage:
    """The words of a page, and its true text."""

    truth: str
    is_unseen: bool = False
    recorded: list[RecordedWord] = field(default_factory=list)

    def is_right(self, text: str, true: "Truth") -> bool:
        """Return whether all of a word's parts are on the page."""
        text = text.upper() if self.truth.isupper() else text
        return all(true.values[value] for value in values(text)) and all(
            true.words[word] for word in words(text)
        )

    def is_cut(self, text: str, true: "Truth") -> bool:
        """Return whether a word is a piece of a longer value, which detection has cut: no score tells of that."""
        text = text.upper() if self.truth.isupper() else text
        parts = values(text)
        return bool(parts) and all(any(part in value for value in true.values) for part in parts)

    def has_other(self, word: RecordedWord, found: alike.Settled, true: "Truth") -> bool:
        """Return whether the page has another word that looks alike."""
        rivals = [text_of_characters(word.characters)]
        rivals += [alike.changed(found.characters, *place) for place in alike.places_alike(found.characters)]
        return any(self.is_right(rival, true) for rival in rivals if rival != found.text)

    def true(self) -> "Truth":
        """Return what stands on the page."""
        return Truth(Counter(values(self.truth)), Counter(words(self.truth)))


class Truth(NamedTuple):
    values: Counter[str]
    words: Counter[str]


def pages(folder: Path | None, drawn: int) -> Iterator[tuple[NDArray[np.uint8], str, bool]]:
    """Yield pixels and text of every page, and whether the models are judged by it and not fitted on it."""
    for start in (0, _UNSEEN_DRAWN):
        for page in value_pages(drawn, start=start):
            yield page.pixels, page.text, start > 0
    for number, exact in enumerate(english_pages()):
        yield np.array(exact.image.convert("RGB")), exact.true.text, number % 2 > 0
    for start, kind, seed in product((0, _UNSEEN_ORDINARY), KINDS, range(_ORDINARY)):
        ordinary = drawn_page(kind, start + seed)
        yield ordinary.pixels, "\n".join(row.written() for row in ordinary.rows), start > 0
    if folder is None:
        return
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    known = [(path, media) for path in files if (media := sniff(path.read_bytes()[:HEAD_BYTES]))]
    in_turn = count()
    for number, exhibit in enumerate(exhibits(folder, known)):
        if exhibit.media is not MediaType.PDF:
            pixels = np.array(Image.open(exhibit.path).convert("RGB"))
            yield pixels, exhibit.truth.pages[0].text, number % 2 > 0
            continue
        turn, text = next(in_turn) % 2, exhibit.truth.pages[0].text
        yield _first_page(exhibit.path, _DPI[turn]), text, number % 2 > 0
        worn = QUALITIES[_WORN[turn]](_first_page(exhibit.path, _DPI[1 - turn]), np.random.default_rng(0))
        yield worn, text, number % 2 > 0


def _first_page(path: Path, dpi: int) -> NDArray[np.uint8]:
    scale: Any = dpi / 72
    with pypdfium2.PdfDocument(path) as document:
        bitmap = document[0].render(scale=scale, rev_byteorder=True, fill_color=(255, 255, 255, 255))
        return np.ascontiguousarray(bitmap.to_numpy()[:, :, :3])


def recorded(pixels: NDArray[np.uint8], truth: str, is_unseen: bool) -> ReadPage:
    """Read a page and keep its words as they came to be settled."""
    page = ReadPage(truth, is_unseen)

    def record(word: Sequence[Character], signs: Sequence[Glyph | None], height: int) -> alike.Settled:
        page.recorded.append(RecordedWord(tuple(word), tuple(signs), height))
        return alike.settled(word, signs, height)

    def record_again(read: alike.Settled, again: Sequence[Character]) -> alike.Settled:
        page.recorded[-1] = page.recorded[-1]._replace(again=tuple(again))
        return alike.confirmed(read, again)

    _READER.settled, _READER.confirmed = record, record_again
    _READER.calibration = lambda: replace(calibration(), doubtful=_LOOK_AGAIN)
    rapidocr.read_page(pixels)
    return page


def fitted(evidence: Sequence[Mapping[str, float]], is_so: Sequence[bool]) -> dict[str, float]:
    """Fit a logistic model by Newton's method (iteratively reweighted least squares) with a ridge."""
    names = ["constant", *sorted({name for one in evidence for name in one} - {"pixels"})]
    table = np.array([[1.0, *(one.get(name, 0.0) for name in names[1:])] for one in evidence])
    target, weights = np.array(is_so, float), np.zeros(len(names))
    ridge = np.diag([0.0, *[_RIDGE] * (len(names) - 1)])
    for _ in range(_STEPS):
        probability = 1 / (1 + np.exp(-(table @ weights).clip(-30, 30)))
        spread = np.maximum(probability * (1 - probability), 1e-9)
        slope = table.T @ (target - probability) - ridge @ weights
        weights += np.linalg.solve((table.T * spread) @ table + ridge, slope)
    return {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}


def model_of_others(read: Sequence[ReadPage]) -> dict[str, float]:
    """Fit how likely a word is the other one that looks alike, where the truth has just one of the two."""
    evidence: list[Mapping[str, float]] = []
    is_other: list[bool] = []
    for page in read:
        true = page.true()
        for word in page.recorded:
            was_read = page.is_right(text_of_characters(word.characters), true)
            for place, sign in alike.places_alike(word.characters):
                is_changed = page.is_right(alike.changed(word.characters, place, sign), true)
                if was_read != is_changed:
                    evidence.append(alike.evidence_of_other(word.characters, place, sign, word.signs))
                    is_other.append(is_changed)
    return fitted(evidence, is_other)


def model_of_errors(read: Sequence[ReadPage], *, again: bool = False) -> dict[str, float]:
    """Fit how likely a word is wrong, signs that look alike apart; or how likely after it was looked at again."""
    evidence: list[Mapping[str, float]] = []
    is_wrong: list[bool] = []
    for page in read:
        true = page.true()
        for word in page.recorded:
            found = alike.settled(word.characters, word.signs, word.height)
            right = page.is_right(found.text, true)
            if not right and (page.is_cut(found.text, true) or page.has_other(word, found, true)):
                continue
            if again and word.again is None:
                continue
            evidence.append(
                alike.evidence_of_second_look(found.wrong, found.text, word.again or ())
                if again
                else found.evidence
            )
            is_wrong.append(not right)
    return fitted(evidence, is_wrong)


def model_of_others_again(read: Sequence[ReadPage]) -> dict[str, float]:
    """Fit the probability that a second look at a word has read a look-alike of it."""
    evidence: list[Mapping[str, float]] = []
    is_other: list[bool] = []
    for page in read:
        true = page.true()
        for word in page.recorded:
            found = alike.settled(word.characters, word.signs, word.height)
            right = page.is_right(found.text, true)
            is_settled = right or page.has_other(word, found, true)
            if word.again is not None and found.unsettled > _UNLIKELY and is_settled:
                evidence.append(alike.evidence_of_second_look(found.unsettled, found.text, word.again))
                is_other.append(not right)
    return fitted(evidence, is_other)


class Trust(NamedTuple):
    """Pages at one threshold."""

    threshold: float
    ok: int
    ok_wrong: int
    """With a wrong value and no flag."""
    right: int
    right_flagged: int


def trust(read: Sequence[ReadPage], thresholds: Sequence[float]) -> list[Trust]:
    """Return how many pages would be flagged, and how many wrongly so, at each threshold."""
    judged: list[list[tuple[float, bool, bool]]] = []
    for page in read:
        true = page.true()
        settled = [word.settled() for word in page.recorded]
        judged.append(
            [(1 - one.confidence, _is_on_value(one), not page.is_right(one.text, true)) for one in settled]
        )
    found: list[Trust] = []
    for threshold in thresholds:
        ok = ok_wrong = right = right_flagged = 0
        for page_words in judged:
            doubts = [(wrong, is_value) for wrong, is_value, _ in page_words if wrong >= threshold]
            expected = sum(wrong for wrong, _ in doubts)
            flagged = any(is_value for _, is_value in doubts) or expected >= _DOUBTFUL_WORDS * len(page_words)
            is_wrong = any(wrong and is_value for _, is_value, wrong in page_words)
            is_right = not any(wrong for *_, wrong in page_words)
            ok, ok_wrong = ok + (not flagged), ok_wrong + (is_wrong and not flagged)
            right, right_flagged = right + is_right, right_flagged + (is_right and flagged)
        found.append(Trust(threshold, ok, ok_wrong, right, right_flagged))
    return found


def _is_on_value(read: alike.Settled) -> bool:
    return any(map(is_value, f"{read.text} {read.other or ''}".split()))


def use(models: Mapping[str, Mapping[str, float]], doubtful: float) -> None:
    """Let words be settled by these models."""
    other, wrong, again, other_again = (Logistic(models.get(name, {})) for name in MODELS)
    known = Calibration(other, wrong, again, other_again, doubtful)
    _ALIKE.calibration = lambda: known


def calibrated(read: Sequence[ReadPage], most_flagged: float) -> tuple[dict[str, dict[str, float]], float]:
    """Return the models and the threshold."""
    models = {"other": model_of_others(read)}
    use(models, 1.0)
    models["wrong"] = model_of_errors(read)
    use(models, 1.0)
    models["again"] = model_of_errors(read, again=True)
    models["other_again"] = model_of_others_again(read)
    found: list[Trust] = []
    for threshold in _THRESHOLDS:
        use(models, threshold)
        found += trust(read, [threshold])
    bearable = [one for one in found if one.right_flagged <= most_flagged * one.right] or found[-1:]
    best = min(bearable, key=lambda one: (one.ok_wrong, -one.threshold))
    use(models, best.threshold)
    return models, best.threshold


def written(models: Mapping[str, Mapping[str, float]], doubtful: float, read: Sequence[ReadPage]) -> str:
    """Return the file."""
    words_read = sum(len(page.recorded) for page in read)
    lines = [
        f"# Made by benchmarks/calibrate.py from {words_read:,} words of {len(read)} pages whose text is known."
    ]
    lines.append(f"doubtful = {doubtful}")
    for name, weights in models.items():
        lines += ["", f"[{name}]", *(f"{key} = {weight}" for key, weight in weights.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read all pages, fit the models on some, print what they do to the unseen ones, write those of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pages", type=Path, default=os.environ.get("BENCH_PAGES"), help="a folder with truths"
    )
    parser.add_argument(
        "--drawn", type=int, default=_DRAWN, help="how many records to draw, and as many unseen ones"
    )
    parser.add_argument(
        "--flagged", type=float, default=0.12, help="share of right pages that may be flagged"
    )
    parser.add_argument("--write", type=Path, default=_TARGET)
    asked = parser.parse_args()
    networks.load_model()
    read = [recorded(*page) for page in pages(asked.pages and Path(asked.pages), asked.drawn)]
    report(read, asked.flagged, asked.write)


def report(read: Sequence[ReadPage], most_flagged: float, target: Path) -> None:
    """Print what models of the seen pages do to the others, and write those of all."""
    _, doubtful = calibrated([page for page in read if not page.is_unseen], most_flagged)
    print("on unseen pages: threshold, ok, of them wrong, right, of them flagged")
    print(*trust([page for page in read if page.is_unseen], (doubtful,)))
    target.write_text(written(*calibrated(read, most_flagged), read), "utf-8")
    tomllib.loads(target.read_text("utf-8"))


if __name__ == "__main__":
    main()
