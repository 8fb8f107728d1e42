"""The asking price of a part, in tokens: what the claim weighs before a worker has seen the pixels.

It follows Qwen2.5-VL, the family of the recommended models; the engine counts exactly once the page is decoded.
"""

from math import ceil, floor, sqrt

from pecia_schemas.tasks import CaptionStyle, DocumentType

_PATCH = 28  # pixels on a side of what becomes one token: 14 px patches merged 2 x 2
_MIN_PIXELS = 56 * 56
_MAX_PIXELS = 12_845_056  # of the published checkpoints' preprocessor_config.json
PROMPT_TOKENS = 64
"""What the instruction and the chat template are taken to be."""

EXPECTED_OUTPUT_TOKENS: dict[str, int] = {
    DocumentType.PRESCRIPTION: 200,
    DocumentType.DIAGNOSIS: 800,
    DocumentType.LAB_RESULT: 400,
    DocumentType.CHART: 2000,
    DocumentType.MIXED: 600,
    "fields": 200,
    "caption-brief": 64,
    "caption-detailed": 160,
    "caption-dense": 256,
    "summary": 256,
}
"""Output tokens of a part by workload: where a fleet starts before it has learned its own.

Pages by document type: the means of the medical workload the product is sized for. Fields: as a prescription's text.
Captions: within the 50 to 256 new tokens that a caption is asked to have.
"""


def image_tokens(width: int, height: int) -> int:
    """Return the tokens of a picture of `width` x `height` pixels, both positive.

    Source: `smart_resize` in transformers `models/qwen2_vl/image_processing_qwen2_vl.py`.
    """
    rows, columns = max(1, round(height / _PATCH)), max(1, round(width / _PATCH))
    if rows * columns * _PATCH**2 > _MAX_PIXELS:
        shrink = sqrt(width * height / _MAX_PIXELS)
        rows, columns = floor(height / shrink / _PATCH), floor(width / shrink / _PATCH)
    elif rows * columns * _PATCH**2 < _MIN_PIXELS:
        grow = sqrt(_MIN_PIXELS / (width * height))
        rows, columns = ceil(height * grow / _PATCH), ceil(width * grow / _PATCH)
    return max(1, rows) * max(1, columns)


def segment_cost(frames: int, width: int, height: int, style: CaptionStyle) -> int:
    """Return the tokens one video segment is expected to take: two frames share theirs, as in Qwen2.5-VL's clips."""
    seen = ceil(frames / 2) * image_tokens(width, height)
    return seen + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]


def summary_cost(segments: int, style: CaptionStyle) -> int:
    """Return the tokens the summary of so many segments is expected to take: their captions, and its own text."""
    captions = segments * EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]
    return captions + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS["summary"]


def page_cost(width: int, height: int, document_type: DocumentType) -> int:
    """Return the tokens one page is expected to take: picture, prompt and answer."""
    return image_tokens(width, height) + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[document_type]
