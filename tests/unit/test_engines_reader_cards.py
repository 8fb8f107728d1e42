"""Reader cards and presets: which one a model has, what it changes of a request, how a model writes for a task."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import (
    CaptionStyle,
    CaptionVideo,
    DocumentType,
    GenerationOptions,
    Preset,
    ReadDocument,
)
from pecia_workers.engines.plan import plan_engine
from pecia_workers.engines.profiles import GIB, merged, profile_file, profile_named
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
from pecia_workers.protocol.base import EngineUnavailableError, Sampling
from pecia_workers.reading.page import instruction_for, page_instruction

PAGE = (Path(__file__).parents[2] / "docs/readers.md").read_text()


@pytest.mark.parametrize(
    ("model", "card"),
    [
        ("PaddlePaddle/PaddleOCR-VL", "paddleocr_vl"),
        ("PaddlePaddle/PaddleOCR-VL-1.6", "paddleocr_vl_1_6"),
        ("lightonai/LightOnOCR-1B-1025", "lightonocr"),
        ("lightonai/LightOnOCR-3-4B", "lightonocr3"),
        ("rednote-hilab/dots.mocr", "dots_mocr"),
        ("datalab-to/surya-ocr-2.5", "surya"),
        ("openbmb/MiniCPM-OCR-1.0-AWQ", "minicpm_ocr"),
        ("infly/Infinity-Parser2-Flash", "infinity_parser2"),
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


def test_the_cards_have_all_formats_no_name_twice_and_a_warning_with_each_licence_that_restricts() -> None:
    names = [name for card in cards().values() for name in card.names]
    assert len(names) == len(set(names))
    assert {card.answer for card in cards().values()} == set(AnswerFormat)
    permissive = {card.license for card in cards().values() if not card.warning}
    assert permissive == {"Apache-2.0", "MIT", "the model's own"}
    assert not permissive & {card.license for card in cards().values() if card.warning}


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
    profile = profile_named("l4").model_copy(update={"engine_options": own.engine_options})
    assert merged(given, profile, 0).engine_options == card.engine_options, "it wins over the profile"


def test_a_plan_tells_the_licence_and_the_needs_of_its_card_and_what_else_reads_documents() -> None:
    l4 = profile_named("l4")
    settings = WorkerSettings(engine="vllm", model="Qwen/Qwen2.5-VL-7B-Instruct", card="dots_ocr")
    plan = plan_engine(settings, l4, l4.memory_bytes)
    card = cards()["dots_ocr"]
    assert (plan.card, plan.warning, plan.needs) == (card.title, card.warning, card.needs)
    assert plan.readers == readers_for(l4.memory_bytes)
    assert plan_engine(settings, l4, l4.memory_bytes, captions=True).readers == ()


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
    others = map(str.strip, card.other_prompts.values())
    for said in (row, card.warning, card.needs, card.limits, *others, *card.sources):
        assert said in PAGE


def test_only_models_under_a_permissive_licence_are_recommended() -> None:
    models = [models for choice in profile_file().choices for models in (choice.speed, choice.quality)]
    names = [name for one in models for name in (one.reads, one.captions)]
    assert {profile_file().models[name].license for name in names} == {"Apache-2.0"}


ANY_PRESET = st.sampled_from(Preset)
ANY_OPTIONS = st.builds(
    GenerationOptions,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(0, 200),
    repetition_penalty=st.floats(0.5, 2),
    max_output_tokens=st.integers(1, 9_000),
    seed=st.integers(0, 99),
)


def caption(**how: Any) -> tuple[Sampling, int | None]:
    return sampling_for(CaptionVideo(b"", **how))


def read_page(**how: Any) -> tuple[Sampling, int | None]:
    return sampling_for(ReadDocument(b"", **how))


def test_a_page_is_read_greedily_and_as_long_as_it_is_and_no_preset_forbids_it_to_repeat_itself() -> None:
    assert read_page() == (Sampling(), None)
    for preset in Preset:
        sampling, most = read_page(preset=preset)
        assert (sampling.repetition_penalty, most) == (1.0, None)


def test_a_caption_is_balanced_and_no_longer_than_the_fleet_lets_it_unless_its_task_says_otherwise() -> None:
    assert caption() == caption(preset="balanced")
    assert caption()[0].temperature == 0.7
    for style in CaptionStyle:
        assert caption(style=style)[1]
    bounded = [sampling_for(CaptionVideo(b""), caption_tokens=bound)[1] for bound in (0, 128, 512)]
    assert bounded == [256, 128, 256]
    task = CaptionVideo(b"", options=GenerationOptions(max_output_tokens=900))
    assert sampling_for(task, caption_tokens=128)[1] == 900


@given(preset=ANY_PRESET)
def test_korean_captions_stay_within_their_bounds_and_pages_have_none(preset: Preset) -> None:
    sampling, _ = caption(preset=preset, language="ko")
    assert 0.5 <= sampling.temperature <= 0.7
    assert 1.1 <= sampling.repetition_penalty <= 1.2
    assert read_page(preset=preset, language="ko") == read_page(preset=preset)


@given(preset=ANY_PRESET, options=ANY_OPTIONS, language=st.sampled_from(["en", "ko"]))
def test_what_a_task_says_itself_wins(preset: Preset, options: GenerationOptions, language: str) -> None:
    wanted = options.model_dump(exclude={"max_output_tokens"})
    for sampling, most in (
        read_page(preset=preset, options=options, language=language),
        caption(preset=preset, options=options, language=language),
    ):
        assert sampling == Sampling(**wanted)
        assert most == options.max_output_tokens


def test_what_a_task_leaves_out_stays_as_the_preset_says() -> None:
    sampling, most = caption(preset="creative", options=GenerationOptions(top_k=7))
    assert sampling == Sampling(temperature=1.0, top_p=0.95, top_k=7, repetition_penalty=1.2)
    assert most == 256
