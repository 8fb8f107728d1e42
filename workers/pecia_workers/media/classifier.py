"""Whether a piece of a text line stands upright or on its head: rapidocr's small classifier, if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_MODEL = Path("models", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")
_WIDTH, _HEIGHT = 192, 48  # what the network was trained on


class LineClassifier:
    """PaddleOCR's text line classifier on onnxruntime, one thread."""

    def __init__(self, model: Path) -> None:
        import onnxruntime  # noqa: PLC0415  only where pecia[cpu] is installed

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(
            str(model), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def upside_down(self, pieces: Sequence[Image.Image]) -> NDArray[np.float32]:
        """Return for each grey piece of a line the probability that it stands on its head."""
        batch = np.stack([_normalised(piece) for piece in pieces])
        probabilities: NDArray[np.float32] = self._session.run(None, {self._input: batch})[0]
        return probabilities[:, 1]


@cache
def line_classifier() -> LineClassifier | None:
    """Return the classifier, loaded once in this process, or None where pecia[cpu] is not installed."""
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    model = Path(package.origin).parent / _MODEL
    return LineClassifier(model) if model.is_file() else None


def _normalised(piece: Image.Image) -> NDArray[np.float32]:
    width = min(_WIDTH, max(1, round(piece.width * _HEIGHT / piece.height)))
    grey = np.asarray(piece.resize((width, _HEIGHT)), dtype=np.float32) / 127.5 - 1
    padded = np.zeros((_HEIGHT, _WIDTH), dtype=np.float32)
    padded[:, :width] = grey
    return np.broadcast_to(padded, (3, _HEIGHT, _WIDTH))
