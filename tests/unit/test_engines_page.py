"""docs/engine.md says what the data files say."""

from pathlib import Path

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preset
from pecia_workers.engines.profiles import merged, profile_file
from pecia_workers.engines.reader_cards import presets

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")


def row(first: str) -> list[str]:
    """Return the cells of the only row that begins with this word."""
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{first}`")]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize("name", profile_file().profiles)
def test_a_profile_has_its_sizes_on_the_page(name: str) -> None:
    profile = profile_file().profiles[name]
    sizes = merged(WorkerSettings(engine="vllm"), profile, profile.memory_bytes)
    _, memory, pages, step, longest, caption = row(name)
    share = sizes.gpu_memory_utilization
    assert memory == (f"{share:.0%}".replace("%", " %") if share else "4 GiB of KV cache")
    assert (pages, caption) == (str(sizes.max_num_seqs), str(sizes.caption_tokens))
    assert (step, longest) == (f"{sizes.max_num_batched_tokens:,}", f"{sizes.max_model_len:,}")


@pytest.mark.parametrize("name", presets().presets)
def test_a_preset_has_its_values_on_the_page(name: Preset) -> None:
    values = presets().presets[name]
    _, temperature, top_p, top_k, penalty, tokens = row(name)
    assert float(temperature.removesuffix(", greedy")) == values.temperature
    assert (float(top_p), float(penalty)) == (values.top_p, values.repetition_penalty)
    assert top_k == (str(values.top_k) if values.top_k else "any")
    assert tokens == (str(values.caption_tokens) if values.caption_tokens else "by style")


def test_every_model_is_on_the_page() -> None:
    for name in profile_file().models:
        assert name.removeprefix("Qwen/").partition("-Instruct")[0] in PAGE
