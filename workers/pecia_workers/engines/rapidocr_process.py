"""What runs inside a process of the rapidocr engine: one model, one thread, one page at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rapidocr import RapidOCR

from pecia_schemas.blocks import Box, Line
from pecia_workers.engines.reading_order import in_reading_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARAMS: Final[dict[str, Any]] = {
    "Global.log_level": "error",
    "Global.use_cls": False,  # pages arrive upright
    "Global.text_score": 0.3,  # a doubtful line is kept and lowers the page's confidence; the default drops it silently
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Rec.rec_batch_num": 1,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}
_model: RapidOCR | None = None


def load_model() -> None:
    """Load the model into this process and run it once, for it loads its networks at first use."""
    global _model  # noqa: PLW0603  a process is the model's owner
    import cv2  # noqa: PLC0415  an import of rapidocr's

    cv2.setNumThreads(1)
    _model = RapidOCR(params=_PARAMS)
    warm_up = np.full((64, 256, 3), 255, dtype=np.uint8)
    warm_up[24:40, 16:240:8] = 0
    read_page(warm_up)


def read_page(pixels: NDArray[np.uint8]) -> tuple[Line, ...]:
    """Return the page's lines in reading order; empty if no text was found."""
    if _model is None:
        raise RuntimeError("load_model() comes first.")
    found: Any = _model(np.ascontiguousarray(pixels[:, :, ::-1]))  # rapidocr takes arrays as BGR
    if found.txts is None or found.boxes is None:
        return ()
    return in_reading_order(
        [
            _line(text, corners, score)
            for text, corners, score in zip(found.txts, found.boxes, found.scores, strict=True)
        ]
    )


def _line(text: str, corners: NDArray[np.float32], score: float) -> Line:
    left, top = corners.min(axis=0)
    right, bottom = corners.max(axis=0)
    box = Box(left=math.floor(left), top=math.floor(top), right=math.ceil(right), bottom=math.ceil(bottom))
    return Line(text=text, box=box, confidence=min(1.0, max(0.0, float(score))))
