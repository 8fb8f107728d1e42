"""Tiny checkpoints of real architectures, with random weights: made in seconds, without a download.

`python tests/engine/checkpoints.py DIRECTORY [--hidden 1024] [--layers 12]` makes one by hand.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_TEMPLATE = """\
{% if messages[0]['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_GLM_MARKS = (
    *("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|video|>", "<|end_of_video|>"),
)
_GLM_TEMPLATE = _TEMPLATE.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|begin_of_image|><|image|><|end_of_image|>"
).replace("<|vision_start|><|video_pad|><|vision_end|>", "<|begin_of_video|><|video|><|end_of_video|>")
_SMOLVLM_MARKS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
_SMOLVLM_TEMPLATE = _TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
_CORPUS = (
    "You are a helpful assistant. Transcribe this prescription as Markdown. system user assistant",
    "| test | value | unit | reference |\n|---|---|---|---|\n| Glucose | 5.4 | mmol/L | 3.9 - 5.6 |",
    "0 1 2 3 4 5 6 7 8 9 mg ml twice daily for ten days. Diagnosis: J20.9 acute bronchitis, 2026-03-14",
)
_METHODS: dict[str, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["visual"],
    },
    "gptq": {"quant_method": "gptq", "desc_act": False, "sym": True, "dynamic": {r"-:.*visual.*": {}}},
}
_PATCH = 14
_PICTURE: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "resample": 3,
    "merge_size": 2,
    "patch_size": _PATCH,
    "temporal_patch_size": 2,
    "processor_class": "Qwen2_5_VLProcessor",
}
_SMALLEST, _LARGEST = 4, 1280  # tokens of a picture, each 28 x 28 pixels
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_AWQ_GROUP = 128
_AWQ_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_checkpoint(
    directory: Path, *, hidden: int = 256, layers: int = 2, endless: bool = False, loops: bool = False
) -> Path:
    """Write a checkpoint and return its directory.

    One that is `endless` never writes the token that ends an answer; one that `loops` writes nothing but one token,
    however it is asked.
    """
    tokenizer = _tokenizer()
    model = _model(hidden, layers, tokenizer)
    if endless:
        with torch.no_grad():  # the largest of a thousand random logits is positive
            model.lm_head.weight[model.generation_config.eos_token_id] = 0
    if loops:
        _fix_on(model, token=tokenizer.convert_tokens_to_ids("a"))
    sizes = {"shortest_edge": _SMALLEST * 28 * 28, "longest_edge": _LARGEST * 28 * 28}
    video = {"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": False}
    clips = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
    return _saved(
        directory,
        model,
        tokenizer,
        preprocessor={**_PICTURE, "image_processor_type": "Qwen2VLImageProcessor", "size": sizes},
        video_preprocessor={**_PICTURE, **video, "size": clips},
        processor={"processor_class": "Qwen2_5_VLProcessor"},
    )


def make_glm_ocr(directory: Path) -> Path:
    """Write a checkpoint of GLM-OCR and return its directory."""
    tokenizer = _tokenizer((*_SPECIAL, *_GLM_MARKS), _GLM_TEMPLATE)
    tokenizer.image_token, tokenizer.video_token = "<|image|>", "<|video|>"
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in _GLM_MARKS}
    text = _small_text(tokenizer) | {
        "num_nextn_predict_layers": 1,
        "eos_token_id": [tokenizer.convert_tokens_to_ids("<|im_end|>")],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 6, 6],
            "partial_rotary_factor": 1.0,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "patch_size": _PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "image_size": 336,
    }
    config = GlmOcrConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
        architectures=["GlmOcrForConditionalGeneration"],
        dtype="bfloat16",
    )
    sizes = {"shortest_edge": 16 * 28 * 28, "longest_edge": 12288 * 28 * 28}
    common = {**_PICTURE, "size": sizes, "processor_class": "Glm46VProcessor"}
    return _saved(
        directory,
        _randomised(GlmOcrForConditionalGeneration(config)),
        tokenizer,
        preprocessor=common | {"image_processor_type": "Glm46VImageProcessor"},
        video_preprocessor=common | {"video_processor_type": "Glm46VVideoProcessor"},
    )


def make_smolvlm(directory: Path, *, window: int | None = None) -> Path:
    """Write a checkpoint of SmolVLM, which cuts pictures into tiles, and return its directory.

    With a `window` the first of its two layers looks at so many tokens alone.
    """
    tokenizer = _tokenizer((*_SPECIAL, *_SMOLVLM_MARKS), _SMOLVLM_TEMPLATE)
    end, image = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<image>"])
    text = _small_text(tokenizer) | {"model_type": "llama"}
    if window:
        text |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 512,
        "patch_size": 16,
    }
    config = SmolVLMConfig(
        text_config=text, vision_config=vision, image_token_id=image, pad_token_id=end, scale_factor=4
    )
    model = SmolVLMForConditionalGeneration(config)
    model.generation_config = GenerationConfig(pad_token_id=end, eos_token_id=end, do_sample=False)
    sampling = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}
    sizes = {"size": {"longest_edge": 1024}, "max_image_size": {"longest_edge": 512}}
    common = {**sizes, "video_sampling": sampling, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return _saved(
        directory,
        _randomised(model),
        tokenizer,
        preprocessor=common | {"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True},
        video_preprocessor=common | {"video_processor_type": "SmolVLMVideoProcessor"},
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 64},
    )


def _small_text(tokenizer: Any) -> dict[str, Any]:
    """Return the configuration of a small language model."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 32768,
        "pad_token_id": end,
        "eos_token_id": end,
    }


def _saved(directory: Path, model: Any, tokenizer: Any, **configs: dict[str, Any]) -> Path:
    """Write a checkpoint; its processors' files by hand, with the keys of the published ones."""
    directory.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for name, content in configs.items():
        (directory / f"{name}_config.json").write_text(json.dumps(content, indent=1))
    return directory


def quantize(source: Path, directory: Path, method: Literal["awq", "gptq"] = "awq") -> Path:
    """Write a copy in 4 bits, in groups of 128, as AutoAWQ or AutoGPTQ write it, and return its directory.

    Rounded to nearest, without AWQ's search for scales and GPTQ's corrections: the kernels are put to the test here,
    not the quality.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, directory)
    weights = load_file(source / "model.safetensors")
    write = _as_awq if method == "awq" else _as_gptq
    save_file(dict(_quantized(weights, write)), directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"bits": 4, "group_size": _AWQ_GROUP, **_METHODS[method]}
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory


def make_adapter(checkpoint: Path, directory: Path, *, rank: int = 8) -> Path:
    """Write a LoRA adapter with random weights for the attention of a checkpoint's language model."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if "visual" in name or not name.endswith(("q_proj.weight", "v_proj.weight")):
            continue
        out, into = weight.shape
        base = "base_model.model.model.language_model.layers." + name.partition("layers.")[2].removesuffix(
            ".weight"
        )
        weights[f"{base}.lora_A.weight"] = torch.randn(rank, into, generator=generator) * into**-0.5
        weights[f"{base}.lora_B.weight"] = torch.randn(out, rank, generator=generator)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(checkpoint),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))
    return directory


def _tokenizer(special: Sequence[str] = _SPECIAL, template: str = _TEMPLATE) -> Any:
    """Return a byte-level BPE trained on a few lines, with the special tokens of the published checkpoints."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=960, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    trained.train_from_iterator(_CORPUS * 50, trainer)
    trained.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=32768,
        chat_template=template,
    )


def _model(hidden: int, layers: int, tokenizer: Any) -> Any:
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL}
    heads = hidden // 64
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "max_position_embeddings": 32768,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1_000_000.0},
    }
    vision = {
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 2,
        "patch_size": _PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        do_sample=False,
    )
    return _randomised(model)


def _randomised(model: Any) -> Any:
    """Widen the weights, so that what is written depends on the picture: the usual 0.02 leaves all logits alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                fan_in = weight[0].numel()
                spread = 1.0 if "embed_tokens" in name else fan_in**-0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * spread)
    return model


def _fix_on(model: Any, token: int) -> None:
    """Let no layer move a token's embedding, which is the same for all, and let it mean one token beyond any doubt."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "visual" not in name and name.endswith(
                ("o_proj.weight", "down_proj.weight", "lm_head.weight")
            ):
                weight.zero_()
        model.get_input_embeddings().weight.fill_(1)
        model.lm_head.weight[token] = 1


def _quantized(
    weights: dict[str, Any], write: Callable[[str, Any], dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    for name, weight in weights.items():
        base = name.removesuffix(".weight")
        if "visual" in name or not name.endswith(".weight") or base.rpartition(".")[2] not in _AWQ_LINEARS:
            yield name, weight.contiguous()
        else:
            yield from write(base, weight.float()).items()


def _as_awq(base: str, weight: Any) -> dict[str, Any]:
    integers, scales, zeros = _rounded(weight)
    return {
        f"{base}.qweight": _packed(integers.T),
        f"{base}.qzeros": _packed(zeros.T),
        f"{base}.scales": scales.T.contiguous().half(),
    }


def _as_gptq(base: str, weight: Any) -> dict[str, Any]:
    """Return symmetric weights, `(integer - 8) * scale`, eight rows of the input in 32 bits, in their order."""
    groups = weight.reshape(weight.shape[0], -1, _AWQ_GROUP)
    scales = (groups.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 7).half().float()
    integers = (torch.round(groups / scales) + 8).clamp(0, 15).reshape(weight.shape).int()
    zeros = torch.full_like(scales.squeeze(-1), 7).int()  # this format keeps them less one
    order = torch.arange(8)
    return {
        f"{base}.qweight": _packed(integers, order).T.contiguous(),
        f"{base}.qzeros": _packed(zeros.T, order),
        f"{base}.scales": scales.squeeze(-1).T.contiguous().half(),
        f"{base}.g_idx": (torch.arange(weight.shape[1]) // _AWQ_GROUP).int(),
    }


def _rounded(weight: Any) -> tuple[Any, Any, Any]:
    """Return integers 0 to 15, and the scale and zero point of each group: `weight = (integer - zero) * scale`."""
    groups = weight.reshape(weight.shape[0], -1, _AWQ_GROUP)
    highest, lowest = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    scales = ((highest - lowest).clamp(min=1e-5) / 15).half().float()
    zeros = (-torch.round(lowest / scales)).clamp(0, 15)
    integers = (torch.round(groups / scales) + zeros).clamp(0, 15)
    return integers.reshape(weight.shape).int(), scales.squeeze(-1), zeros.squeeze(-1).int()


def _packed(integers: Any, order: Any = _AWQ_ORDER) -> Any:
    """Return rows of 4-bit integers, eight in 32 bits, by default in the order of AutoAWQ's GEMM kernels."""
    eights = integers.reshape(integers.shape[0], -1, 8)[:, :, order].to(torch.int64)
    words = (eights << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def main() -> None:
    """Make the checkpoint that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    make_checkpoint(given.directory, hidden=given.hidden, layers=given.layers)


if __name__ == "__main__":
    main()
