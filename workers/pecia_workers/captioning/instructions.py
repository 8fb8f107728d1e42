"""What a language model is asked to do with a video: a file per style and language, in `prompts/`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pecia_schemas import CaptionStyle


def instruction_for_segment(style: CaptionStyle, language: str) -> str:
    """Return the instruction for the frames of one segment, in the language of the captions."""
    return _read(f"{style}.{language}")


def instruction_for_summary(language: str, captions: str) -> str:
    """Return the instruction for a summary, and the captions behind it."""
    return f"{_read(f'summary.{language}')}\n\n{captions}"


@cache
def _read(name: str) -> str:
    prompt = files("pecia_workers.captioning") / "prompts" / f"{name}.md"
    return prompt.read_text(encoding="utf-8").strip()
