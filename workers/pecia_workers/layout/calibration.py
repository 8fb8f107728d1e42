"""How likely a reading is wrong: logistic models that `benchmarks/calibrate.py` fits and writes."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_MOST: Final = 30.0
"""Of a sum of evidence: beyond it the probability is 0 or 1 to thirteen places."""
MODELS: Final = ("other", "wrong", "again", "other_again")


@dataclass(frozen=True, slots=True)
class Logistic:
    """A logistic model: the probability is that of a sum of weighted evidence, as log-odds."""

    weights: Mapping[str, float]

    def probability(self, evidence: Mapping[str, float]) -> float:
        """Return the probability; of evidence without a weight nothing is known, and it counts for nothing."""
        total = self.weights.get("constant", 0.0)
        total += sum(self.weights.get(name, 0.0) * value for name, value in evidence.items())
        return 1 / (1 + math.exp(-min(max(total, -_MOST), _MOST)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured."""

    other: Logistic
    """Probability that a word was misread as another that looks alike."""
    wrong: Logistic
    """That a word is wrong, signs that look alike apart."""
    again: Logistic
    """The same of a word that was looked at again, alone."""
    other_again: Logistic
    """That such a word is the other one."""
    doubtful: float
    """The probability of being wrong from which a word is looked at again, and then a doubt."""


@cache
def calibration() -> Calibration:
    """Return the calibration measured for the CPU engine."""
    known = tomllib.loads(files("pecia_workers.layout").joinpath("calibration.toml").read_text("utf-8"))
    other, wrong, again, other_again = (Logistic(known[name]) for name in MODELS)
    return Calibration(other, wrong, again, other_again, known["doubtful"])


def log_odds(probability: float, least: float = 1e-4) -> float:
    """Return the logarithm of the odds, bounded where a recogniser's confidence means nothing any more."""
    bounded = min(max(probability, least), 1 - least)
    return math.log(bounded / (1 - bounded))
