"""What else a request may ask of the real engine: clips, words alone, schemas, sampling, adapters, drafts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline
from checkpoints import make_adapter, make_glm_ocr
from offline import SIZES, clip
from pecia_schemas.failures import FailureCode
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import (
    Engine,
    EngineOverloadedError,
    EngineRefusedError,
    EngineRequest,
    Sampling,
)
from tests.shared.asking_openai import started

asked = partial(offline.asked, max_output_tokens=24)


@pytest.fixture(scope="module")
def asking(
    make_vllm: Callable[..., Engine], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[asyncio.Runner, Engine]]:
    adapter = make_adapter(checkpoint, tmp_path_factory.mktemp("adapters") / "loud")
    options = {"dtype": "float32", "enable_chunked_prefill": False}  # on the CPU, seeds need whole prompts
    engine = make_vllm(checkpoint, adapters={"loud": str(adapter)}, max_lora_rank=8, engine_options=options)
    with started(engine) as runner:
        yield runner, engine


def test_a_picture_that_was_given_up_can_be_asked_again(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking
    session = engine._session  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    runner.run(session.render(asked(900)))
    assert runner.run(engine.generate(replace(asked(900), id="901"))).usage.output


@pytest.mark.parametrize(
    "request_", [clip(4), clip(7), asked(0, images=(), instruction="Say this in one sentence.")]
)
def test_a_clip_is_one_video_and_costs_as_said_and_so_do_words_alone(
    asking: tuple[asyncio.Runner, Engine], request_: EngineRequest
) -> None:
    runner, engine = asking
    ready = runner.run(engine.fit(request_))
    answer = runner.run(engine.generate(ready))
    assert engine.cost(ready) == answer.usage.prompt + 24
    assert answer.usage.image < answer.usage.prompt
    assert bool(answer.usage.image) is bool(request_.clip)
    if frames := len(request_.images):
        others = {runner.run(engine.generate(clip(frames, seed=seed))).text for seed in range(2, 6)}
        assert others - {answer.text}, "it does not look at the frames"


def test_a_clip_beyond_the_context_loses_frames_and_says_so(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking
    long = clip(120, side=224)
    fitted = runner.run(engine.fit(long))
    answer = runner.run(engine.generate(long))
    assert len(fitted.images) < 120
    assert fitted.clip
    assert (fitted.clip.indices[0], fitted.clip.indices[-1]) == (0, 595)
    assert answer.shrunk_to == (224, 224)


NOT = {"type": "object", "properties": {"drug": {"not": {"type": "string"}}}, "required": ["drug"]}


@pytest.mark.parametrize(
    ("changes", "said", "code"),
    [
        ({"schema": NOT}, "not", FailureCode.FIELDS_UNAVAILABLE),
        ({"adapter": "quiet"}, "adapter", FailureCode.ADAPTER_UNAVAILABLE),
    ],
    ids=["schema", "adapter"],
)
def test_a_schema_that_cannot_be_decoded_by_and_an_adapter_that_is_not_there_are_named(
    asking: tuple[asyncio.Runner, Engine], changes: dict[str, Any], said: str, code: FailureCode
) -> None:
    runner, engine = asking
    with pytest.raises(EngineRefusedError, match=said) as refused:
        runner.run(engine.generate(asked(0, **changes)))
    assert refused.value.code is code


def test_what_only_some_models_need_reaches_the_engine(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking
    stop = runner.run(engine.generate(asked(0))).text.strip()[2:4]
    beside = Sampling(stop=(stop,), skip_special_tokens=False, extra_args={"ngram_size": 30})
    request = asked(0, sampling=beside)
    silent = runner.run(engine.fit(asked(0, instruction="")))

    assert stop not in runner.run(engine.generate(request)).text
    assert engine.cost(silent) == runner.run(engine.generate(silent)).usage.prompt + 24


def test_sampling_reaches_the_engine(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking

    def text(**sampling: Any) -> str:
        return runner.run(engine.generate(asked(3, sampling=Sampling(**sampling)))).text

    hot = text(temperature=1.5, seed=1)
    assert hot == text(temperature=1.5, seed=1)
    assert len({hot, text(), text(temperature=1.5, seed=2)}) == 3
    assert text(temperature=1.5, top_k=1, seed=1) == text()
    assert text(repetition_penalty=1.9) != text()


def test_seeds_of_cut_prompts_end_no_engine(make_vllm: Callable[..., Engine], checkpoint: Path) -> None:
    engine = make_vllm(checkpoint)
    clips = [
        replace(clip(40, seed=seed, side=196), sampling=Sampling(temperature=1, seed=seed))
        for seed in range(4)
    ]

    async def together() -> int:
        answers = await asyncio.gather(*map(engine.generate, clips))
        assert sum(answer.usage.prompt for answer in answers) > 2 * SIZES["max_num_batched_tokens"]
        return len(answers)

    with started(engine) as runner:
        assert runner.run(together()) == len(clips)
        assert engine.load().running == 0


def test_an_adapter_changes_its_own_answer_alone(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking
    plain = [runner.run(engine.generate(asked(number))).text for number in range(4)]

    async def together() -> list[str]:
        mixed = [asked(number, adapter="loud" if number % 2 else None) for number in range(4)]
        return [answer.text for answer in await asyncio.gather(*map(engine.generate, mixed))]

    texts = runner.run(together())

    assert texts[::2] == plain[::2]
    assert texts[1] != plain[1]
    assert texts[3] != plain[3]
    assert engine.capabilities.adapters == {"loud"}


def test_a_request_that_finds_no_memory_is_told_from_one_that_fails(
    asking: tuple[asyncio.Runner, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, engine = asking

    async def exhausted(*_: object, **__: object) -> AsyncIterator[object]:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(engine._session._llm, "generate", exhausted)
        with pytest.raises(EngineOverloadedError, match="no memory"):
            runner.run(engine.generate(asked(71)))
    assert runner.run(engine.generate(asked(72))).usage.output > 0


def test_a_draft_changes_the_speed_and_not_the_text(
    asking: tuple[asyncio.Runner, Engine], make_vllm: Callable[..., Engine], checkpoint: Path
) -> None:
    runner, engine = asking
    plain = [runner.run(engine.generate(asked(number))).text for number in range(4)]
    lookup = {"num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    drafts = {"method": "ngram", **lookup}
    drafting = make_vllm(checkpoint, engine_options={"dtype": "float32"}, speculative_config=drafts)

    with started(drafting) as other:
        assert [other.run(drafting.generate(asked(number))).text for number in range(4)] == plain
        told = drafting.load()
        assert 0 < told.accepted <= told.drafted
        assert told.acceptance == told.accepted / told.drafted


def test_a_page_of_any_family_is_priced_by_its_prompt_and_shrunk_to_the_context(
    make_vllm: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = make_vllm(make_glm_ocr(tmp_path / "glm-ocr"), engine_options={"load_format": "dummy"})
    sizes = ((96, 160), (420, 298), (700, 1100), (2000, 1400))
    pages = [
        EngineRequest(id=str(number), images=(np.zeros((*size, 3), np.uint8),), workload=DocumentType.MIXED)
        for number, size in enumerate(sizes)
    ]

    with started(engine) as runner:
        for page in pages:
            fitted = runner.run(engine.fit(replace(page, max_output_tokens=4)))
            assert engine.cost(fitted) == runner.run(engine.generate(fitted)).usage.prompt + 4
        largest = runner.run(engine.generate(replace(pages[-1], id="shrunk", max_output_tokens=4)))

    assert largest.shrunk_to, "it is more than the context"
