"""The token counts of `pecia_workers.batching.cost` beside those of the processors that the engine runs.

Pictures are tensors without storage (torch's "meta" device): the processors resize, cut and patch them as they do real
ones, in a millisecond each, whatever their size.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from math import log10
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.video_utils import VideoMetadata
from vllm.multimodal.video_prune.evs import compute_retained_tokens_count
from vllm.transformers_utils.processors import internvl as vllm_internvl

from pecia_workers.batching.cost import RefusedSizeError, TokenCounter, counter_for
from pecia_workers.batching.cost.checkpoint import CheckpointTokenizer
from pecia_workers.batching.cost.qwen2_vl import kept_tokens

CHECKPOINTS = Path(__file__).parents[1] / "published_checkpoints"
TABLES = CHECKPOINTS / "token_counts.jsonl"
SIZES = 250
START, END = "<|im_start|>", "<|im_end|>"
JOINING, BYTES_ALONE = 400, 256
"""Sizes of a vocabulary: with some words and runs of line breaks, as published ones have, or without any."""

# What stands for a picture and for a clip in the prompt. vLLM takes no picture for LLaVA-NeXT-Video.
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
IMAGE = {
    **dict.fromkeys(QWEN, "<|vision_start|><|image_pad|><|vision_end|>"),
    "internvl": "<IMG_CONTEXT>",
    "llava_next": "<image>",
    "idefics3": "<image>",
    "smolvlm": "<image>",
    "gemma3": "<start_of_image>",
}
VIDEO = {
    **dict.fromkeys(QWEN, "<|vision_start|><|video_pad|><|vision_end|>"),
    "internvl": "<video>",
    "llava_next_video": "<video>",
}
PROCESSORS = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "internvl": "InternVLProcessor",
    "llava_next": "LlavaNextProcessor",
    "llava_next_video": "LlavaNextVideoProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "SmolVLMProcessor",
    "gemma3": "Gemma3Processor",
}
PICTURES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in sorted(IMAGE)),
    ("qwen2_5_vl", {"size": {"shortest_edge": 200_704, "longest_edge": 1_003_520}}),
    ("qwen3_vl", {"size": {"shortest_edge": 262_144, "longest_edge": 1_310_720}}),
    ("internvl", {"max_patches": 6}),
    ("internvl", {"crop_to_patches": False}),
    ("idefics3", {"do_image_splitting": False}),
    ("smolvlm", {"size": {"longest_edge": 1024}}),
    ("smolvlm", {"size": {"longest_edge": 8192}}),
    ("smolvlm", {"size": {"longest_edge": 1300}}),
    ("gemma3", {"do_pan_and_scan": True}),
    ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 8, "pan_and_scan_min_crop_size": 99}),
]
CAPPED = {"cap_pixels_per_frame": True, "size": {"shortest_edge": 4096, "longest_edge": 2_000_000}}
CLIPS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in sorted(VIDEO)),
    *((family, {"videos_kwargs": CAPPED}) for family in ("qwen2_5_vl", "qwen3_vl")),
]
SPECIAL = [
    *(START, END, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<img>", "</img>", "<IMG_CONTEXT>", "<image>", "<video>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
NAMES = {
    **{one: {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"} for one in QWEN},
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    "gemma3": {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
}


@cache
def tokenizer_file(vocabulary: int) -> str:
    """Return a byte-level tokenizer with so many tokens beside the markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    corpus = ["Frame seconds Here is the original image and here are some crops to help you see better"] * 9
    tokenizer.train_from_iterator([*corpus, *["a\n\n", "b\n\n\n", "c\n\n\n\n", "d\n"] * 9], trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return str(tokenizer.to_str())


class Reference:
    """A family's own processor, and the counter that is to agree with it, on the same checkpoint."""

    def __init__(self, checkpoint: Path, family: str, *, vocabulary: int = JOINING, **overrides: Any) -> None:
        shutil.copytree(CHECKPOINTS / family, checkpoint, dirs_exist_ok=True)
        (checkpoint / "tokenizer.json").write_text(tokenizer_file(vocabulary))
        self.family = family
        self.overrides = overrides
        self.counter: TokenCounter = counter_for(checkpoint, overrides)
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(tokenizer_file(vocabulary)),
            pad_token=END,
            extra_special_tokens=NAMES.get(family, {}),
        )
        self.processor = self._processor(checkpoint)

    def _processor(self, checkpoint: Path) -> Any:
        parts: dict[str, Any] = {
            "image_processor": transformers.AutoImageProcessor.from_pretrained(checkpoint),
            "tokenizer": self.tokenizer,
        }
        if self.family in VIDEO or self.family == "smolvlm":
            parts["video_processor"] = transformers.AutoVideoProcessor.from_pretrained(checkpoint)
        file = checkpoint / "processor_config.json"
        own = json.loads(file.read_text()) if file.is_file() else {}
        own.pop("processor_class", None)
        return getattr(transformers, PROCESSORS[self.family])(**parts, **own)

    def image_tokens(self, width: int, height: int) -> int:
        picture = torch.zeros(3, height, width, dtype=torch.uint8, device="meta")
        return self._added(IMAGE[self.family], images=[picture])

    def video_tokens(self, frames: int, width: int, height: int, fps: float, indices: list[int]) -> int:
        if self.family == "llava_next_video":  # its processor reads the tensor
            clip = torch.zeros(frames, 3, min(height, 200), min(width, 200), dtype=torch.uint8)
        else:
            clip = torch.zeros(frames, 3, height, width, dtype=torch.uint8, device="meta")
        metadata = VideoMetadata(total_num_frames=frames, fps=fps, frames_indices=indices)
        return self._added(
            VIDEO[self.family], videos=[clip], video_metadata=[metadata], do_sample_frames=False
        )

    def _added(self, placeholder: str, **media: Any) -> int:
        before, after = (f"{START}\n", END)
        processed = self.processor(text=[before + placeholder + after], **media, **self.overrides)
        return len(processed["input_ids"][0]) - len(self.tokenizer.encode(before + after))


def chance(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311  sizes to try are no secret


def sizes(seed: str, *, most_side: int = 10_000, most_aspect: float = 20.0) -> Iterator[tuple[int, int]]:
    """Yield random sizes: tiny ones, thin ones, pages and photographs."""
    draw = chance(seed)
    for _ in range(SIZES):
        long = round(10 ** draw.uniform(0.5, log10(most_side)))
        short = max(1, round(long / draw.uniform(1.0, most_aspect) ** draw.choice((0.2, 1.0))))
        yield (long, short) if draw.random() < 0.5 else (short, long)


def differences(
    expected: Callable[[int, int], int], counter: TokenCounter, seed: str
) -> list[tuple[tuple[int, int], int, int]]:
    pairs = [(size, expected(*size), counter.image_tokens(*size)) for size in sizes(seed)]
    return [pair for pair in pairs if pair[1] != pair[2]]


@pytest.mark.parametrize(("family", "overrides"), PICTURES)
def test_a_picture_of_any_size_costs_what_the_familys_own_processor_makes_of_it(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    reference = Reference(tmp_path, family, **overrides)

    assert differences(reference.image_tokens, reference.counter, family) == []


@pytest.mark.parametrize(("family", "overrides"), CLIPS)
def test_a_clip_of_any_length_and_size_costs_what_the_familys_own_processor_makes_of_it(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    reference, draw = Reference(tmp_path, family, **overrides), chance(family)

    for width, height in sizes(family, most_side=1200, most_aspect=4.0):
        frames = draw.choice((2, 9, 64, 300)) if overrides else draw.randint(2, 40)
        fps, indices = draw.choice((0.5, 1.0, 2.0, 23.976, 30.0)), sorted(draw.sample(range(4000), frames))
        expected = reference.video_tokens(frames, width, height, fps, list(indices))
        found = reference.counter.video_tokens(frames, width, height, fps, indices=indices)
        assert found == expected, (frames, width, height)


def internvl_chat_tokens() -> Callable[[int, int], int]:
    """Return the count of vLLM's processor, for transformers has none."""
    processor = vllm_internvl.InternVLImageProcessor(
        image_size=448, min_dynamic_patch=1, max_dynamic_patch=12, dynamic_image_size=True, use_thumbnail=True
    )
    ratios = vllm_internvl.get_internvl_target_ratios(*processor.resolve_min_max_num(use_thumbnail=False))

    def expected(width: int, height: int) -> int:
        tiles, _, _ = vllm_internvl.calculate_internvl_targets(
            orig_width=width, orig_height=height, target_ratios=ratios, image_size=448, use_thumbnail=True
        )
        return int(tiles) * 256 + 2

    return expected


def test_a_picture_costs_internvl_chat_what_vllms_processor_makes_of_it() -> None:
    counter = counter_for(CHECKPOINTS / "internvl_chat")

    assert differences(internvl_chat_tokens(), counter, "internvl_chat") == []


def test_a_pruned_clip_keeps_what_vllm_keeps_of_it() -> None:
    draw = chance("pruned")
    for _ in range(SIZES):
        groups, group_tokens, rate = draw.randint(1, 400), draw.randint(1, 800), draw.random()
        kept = kept_tokens(groups, group_tokens, rate)
        assert kept == compute_retained_tokens_count(group_tokens, groups, rate), (groups, group_tokens, rate)


def test_a_clip_of_one_frame_is_refused_as_qwen3s_processor_refuses_it(tmp_path: Path) -> None:
    reference = Reference(tmp_path, "qwen3_vl")

    with pytest.raises(ValueError, match="temporal_factor"):
        reference.video_tokens(1, 320, 180, 2.0, [0])
    with pytest.raises(RefusedSizeError):
        reference.counter.video_tokens(1, 320, 180, 2.0)


def test_the_checkpoints_own_tokenizer_counts_as_transformers_does(tmp_path: Path) -> None:
    reference = Reference(tmp_path, "qwen3_vl")
    count = CheckpointTokenizer(tmp_path)

    for text in ("<12.5 seconds>", "Frame7: <img></img>", "a\n\n<|im_end|>\n"):
        assert count(text) == len(reference.tokenizer.encode(text, add_special_tokens=False))


PAGES = (1654, 2339), (2480, 3508), (911, 1288), (2550, 3300), (463, 1013), (4032, 3024)
EDGES = (
    *((1, 1), (28, 28), (448, 448), (633, 633), (634, 634), (2000, 2000)),
    *((20_000, 100), (20_001, 100), (100, 20_000), (100, 20_001)),
)
CLIP_ROWS = tuple(
    (frames, *size, fps, first, step)
    for frames, fps, first, step in ((2, 2.0, 0, 1), (4, 1.0, 1000, 1), (9, 23.976, 7, 12), (32, 2.0, 0, 1))
    for size in ((320, 180), (1280, 720), (1920, 1080), (20, 30))
)
"""Frames, width, height, frames per second of their source, and where in it they lie: from which, each how many."""


def counted(count: Callable[..., int], *arguments: Any) -> int | None:
    """Return the count, None for a size that is refused."""
    try:
        return count(*arguments)
    except ValueError:
        return None


def picture_table(
    family: str, overrides: dict[str, Any], tokens: Callable[[int, int], int]
) -> dict[str, Any]:
    rows = [(*size, counted(tokens, *size)) for size in (*PAGES, *EDGES, *islice(sizes(family), 30))]
    return {"of": "pictures", "family": family, "overrides": overrides, "rows": rows}


def clip_table(family: str, overrides: dict[str, Any], reference: Reference) -> dict[str, Any]:
    rows = [
        (*row, counted(reference.video_tokens, *row[:4], [*islice(count(*row[4:]), row[0])]))
        for row in CLIP_ROWS
    ]
    return {"of": "clips", "family": family, "overrides": overrides, "rows": rows}


def test_the_tables_that_unit_tests_read_say_what_the_processors_say(tmp_path: Path) -> None:
    """Delete the file, and this test writes it anew."""

    def reference(family: str, overrides: dict[str, Any]) -> Reference:
        checkpoint = tmp_path / str(len(list(tmp_path.iterdir())))
        return Reference(checkpoint, family, vocabulary=BYTES_ALONE, **overrides)

    tables = [
        {"markers": SPECIAL},
        picture_table("internvl_chat", {}, internvl_chat_tokens()),
        *(picture_table(*one, reference(*one).image_tokens) for one in PICTURES),
        *(clip_table(*one, reference(*one)) for one in CLIPS),
    ]
    written = "".join(json.dumps(table) + "\n" for table in tables)
    if not TABLES.exists():
        TABLES.write_text(written)

    assert TABLES.read_text() == written
