"""Reader cards: which one a model has, what it changes of a request, and what a document's licence allows."""

from pathlib import Path

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType, GenerationOptions, Preset, ReadDocument
from pecia_workers.engines.base import EngineUnavailableError, Sampling
from pecia_workers.engines.profiles import GIB, merged, plan_engine, profile_file, profile_named
from pecia_workers.engines.reader_cards import (
    AnswerFormat,
    Card,
    card_of,
    cards,
    presets,
    readers_for,
    sampling_for,
)
from pecia_workers.engines.vllm.processes import engine_arguments
from pecia_workers.reading.page import instruction_for, page_instruction

PAGE = (Path(__file__).parents[2] / "docs/readers.md").read_text()


@pytest.mark.parametrize(
    ("model", "card"),
    [
        ("PaddlePaddle/PaddleOCR-VL-1.6", "paddleocr_vl"),
        ("zai-org/GLM-OCR", "glm_ocr"),
        ("lightonai/LightOnOCR-2-1B", "lightonocr"),
        ("rednote-hilab/dots.ocr", "dots_ocr"),
        ("/models/DotsOCR", "dots_ocr"),
        ("deepseek-ai/DeepSeek-OCR-2", "deepseek_ocr"),
        ("allenai/olmOCR-2-7B-1025-FP8", "olmocr"),
        ("datalab-to/chandra-ocr-2", "chandra"),
        ("opendatalab/MinerU2.5-2509-1.2B", "mineru"),
        ("ibm-granite/granite-docling-258M", "granite_docling"),
        ("tencent/HunyuanOCR", "hunyuan_ocr"),
        ("nanonets/Nanonets-OCR2-3B", "nanonets_ocr"),
        ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "markdown"),
        ("/hub/models--lightonai--LightOnOCR-2-1B/snapshots/0123abcd", "lightonocr"),
        ("/srv/olmocr/Qwen3-VL-8B", "markdown"),
        ("/models/of-our-own", "markdown"),
        ("", "markdown"),
    ],
)
def test_a_card_is_chosen_by_the_models_name_else_it_is_markdown(model: str, card: str) -> None:
    assert card_of(model) is cards()[card]


def test_a_card_that_is_named_wins_and_a_misspelt_one_is_told_with_the_nearest() -> None:
    assert card_of("Qwen/Qwen3-VL-8B", "olmocr") is cards()["olmocr"]
    with pytest.raises(EngineUnavailableError, match="Did you mean olmocr"):
        card_of("Qwen/Qwen3-VL-8B", "olmoc")


def test_no_two_cards_claim_the_same_name() -> None:
    names = [name for card in cards().values() for name in card.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("card", cards().values(), ids=cards())
def test_a_licence_that_is_not_permissive_comes_with_a_warning(card: Card) -> None:
    assert bool(card.warning) is (card.license not in ("Apache-2.0", "MIT", "the model's own"))


def test_the_readers_for_a_gpu_fit_and_come_under_permissive_licences() -> None:
    on_t4, on_l4 = readers_for(15 * GIB), readers_for(22 * GIB)
    assert "lightonai/LightOnOCR-2-1B" in on_t4
    assert set(on_l4) - set(on_t4) == {"allenai/olmOCR-2-7B-1025-FP8"}
    assert not any(card_of(name).warning for name in on_l4)


@pytest.mark.parametrize("card", cards().values(), ids=cards())
def test_vllm_gets_what_a_card_needs_and_the_operators_own_options_win(card: Card) -> None:
    given = WorkerSettings(model=card.names[0])
    own = given.model_copy(update={"engine_options": dict.fromkeys(card.engine_options, "own")})
    assert engine_arguments(given, ()).items() >= card.engine_options.items()
    assert engine_arguments(own, card.engine_options).items() >= own.engine_options.items()


def test_a_plan_tells_the_licence_and_the_needs_of_its_card_and_what_else_reads_documents() -> None:
    l4 = profile_named("l4")
    settings = WorkerSettings(engine="vllm", model="Qwen/Qwen2.5-VL-7B-Instruct", card="dots_ocr")
    plan = plan_engine(settings, l4, l4.memory_bytes)
    card = cards()["dots_ocr"]
    assert (plan.card, plan.warning, plan.needs) == (card.title, card.warning, card.needs)
    assert plan.readers == readers_for(l4.memory_bytes)
    assert plan_engine(settings, l4, l4.memory_bytes, captions=True).readers == ()


def test_what_a_card_needs_wins_over_the_gpus_profile() -> None:
    settings = merged(
        WorkerSettings(engine="vllm", model="deepseek-ai/DeepSeek-OCR-2"), profile_named("l4"), 0
    )
    assert settings.engine_options["enable_prefix_caching"] is False


def test_every_format_that_models_answer_in_has_a_card() -> None:
    assert {card.answer for card in cards().values()} == set(AnswerFormat)


def test_a_model_without_a_prompt_of_its_own_is_told_in_the_fleets_words() -> None:
    words = instruction_for(DocumentType.CHART, "ko")
    assert page_instruction(cards()["markdown"], DocumentType.CHART, "ko") == words
    assert page_instruction(cards()["paddleocr_vl"], DocumentType.CHART, "ko") == "OCR:"
    assert page_instruction(cards()["lightonocr"], DocumentType.CHART, "ko") == ""


def test_a_page_is_written_as_its_models_makers_want_it_unless_the_task_says_otherwise() -> None:
    card = cards()["granite_docling"]
    task = ReadDocument(b"", preset=Preset.FACTUAL, options=GenerationOptions(top_k=3))
    plain, _ = sampling_for(ReadDocument(b""), card=cards()["olmocr"])
    own, _ = sampling_for(task, card=card)
    assert plain == Sampling(temperature=0.1)
    assert (own.temperature, own.top_k) == (presets().presets[Preset.FACTUAL].temperature, 3)
    assert (own.stop, own.skip_special_tokens) == (("</doctag>",), False)  # its format stays


@pytest.mark.parametrize("key", cards())
def test_a_card_is_on_the_page_as_it_is(key: str) -> None:
    card, plain = cards()[key], Card(title="", names=(), license="", answer=AnswerFormat.MARKDOWN)
    size = "any size"
    if card.longest_side < plain.longest_side:
        size = f"{card.longest_side:,} pixels a side"
    elif card.most_pixels < plain.most_pixels:
        size = f"{card.most_pixels / 1e6:.1f} megapixels"
    fields, instructions = ("yes" if takes else "no" for takes in (card.fields, card.instructions))

    row = f"| `{key}` | {card.title} | {card.answer} | {size} | {card.license} | {fields} | {instructions} |"
    assert row in PAGE
    for said in (
        card.warning,
        card.needs,
        card.limits,
        *map(str.strip, card.other_prompts.values()),
        *card.sources,
    ):
        assert said in PAGE


def test_only_models_under_a_permissive_licence_are_recommended() -> None:
    licences = {
        profile_file().models[name].license
        for choice in profile_file().choices
        for models in (choice.speed, choice.quality)
        for name in (models.reads, models.captions)
    }
    assert licences == {"Apache-2.0"}
