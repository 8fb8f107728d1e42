"""Quantise a model of your own to 4 bits, so that a smaller GPU reads with it.

In an environment of its own, for it wants another transformers than vLLM: `pip install llmcompressor`. Then

    python examples/quantise_model.py DIRECTORY DIRECTORY-w4a16
    PECIA_MODEL=DIRECTORY-w4a16 pecia engine check

Weights are rounded to 4 bits in groups of 128, the vision tower and the output layer stay as they are. No documents are
needed. GPTQ loses less: give `oneshot` a `GPTQModifier` and some hundred of your own pages.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForImageTextToText

WEIGHTS_IN_4_BITS = QuantizationModifier(
    targets="Linear", scheme="W4A16", ignore=["re:.*visual.*", "re:.*vision.*", "re:.*lm_head"]
)


def main() -> None:
    """Quantise the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    model = AutoModelForImageTextToText.from_pretrained(given.source, dtype="auto")
    oneshot(model=model, recipe=WEIGHTS_IN_4_BITS)
    model.save_pretrained(given.target, save_compressed=True)
    for path in given.source.iterdir():  # tokenizer, chat template, processors
        if path.suffix != ".safetensors" and not (given.target / path.name).exists():
            shutil.copy(path, given.target)


if __name__ == "__main__":
    main()
