"""What preparers make of a page is what the engine would have made of it, and no page is lost with one of them."""

import asyncio
import copy
import os
import pickle
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import structlog
from pydantic import TypeAdapter

from checkpoints import make_adapter, make_glm_ocr, make_smolvlm
from fleets import READY_S
from offline import PAGES, SCHEMA, asked, clip
from pecia_workers.engines.requests import Prepared
from pecia_workers.engines.vllm.engine import Preparers
from pecia_workers.media.frames import CallFailedError, InvalidMemoryError, mapped, plain, sealed
from pecia_workers.protocol.base import Engine, Generation
from tests.shared import hostile_code
from tests.shared.asking_openai import started

Asking = tuple[asyncio.Runner, Any]
FULL = {"dtype": "float32"}
_PICKLE = 1  # vLLM's own number for what is to be unpickled
ANYTHING = plain(TypeAdapter(Any))


@pytest.fixture(scope="module")
def asking(
    make_vllm: Callable[..., Engine], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asking]:
    """An engine with two preparers, and where its coroutines run."""
    adapter = make_adapter(checkpoint, tmp_path_factory.mktemp("adapters") / "loud")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(hostile_code.__file__).parents[2]))
        engine = make_vllm(
            checkpoint, preparers=2, adapters={"loud": str(adapter)}, max_lora_rank=8, engine_options=FULL
        )
    with started(engine) as runner:
        assert processes_of(engine), "the preparers were left out"
        yield runner, engine


def processes_of(engine: Any) -> list[psutil.Process]:
    """Return the preparers of an engine, forked from one process."""
    template = engine._preparers and engine._preparers._processes._template
    return psutil.Process(template._process.pid).children() if template and template.alive else []


async def together(engine: Engine) -> list[Generation]:
    return await asyncio.gather(*(engine.generate(asked(number)) for number in range(PAGES)))


@pytest.mark.parametrize("make", [make_glm_ocr, make_smolvlm])
def test_pages_of_families_of_which_nothing_is_known_here_say_what_the_offline_api_says(
    make: Callable[[Path], Path],
    tmp_path: Path,
    make_vllm: Callable[..., Engine],
    answers_offline: Callable[[Path, str], list[dict[str, Any]]],
) -> None:
    family = make(tmp_path / "checkpoint")
    engine = make_vllm(family, preparers=1, engine_options=FULL)
    with started(engine) as runner:
        assert processes_of(engine), "the preparers were left out"
        read = runner.run(together(engine))
    offline = answers_offline(family, "float32")
    assert [answer.text for answer in read] == [told["text"] for told in offline]
    assert [answer.usage.prompt for answer in read] == [told["prompt"] for told in offline]


@pytest.mark.parametrize(
    "request_",
    [
        asked(1),
        clip(),
        asked(2, images=(), instruction="Say this in one sentence."),
        asked(3, schema=SCHEMA, adapter="loud", system="Be brief."),
        asked(4, images=(np.arange(1400 * 1700 * 3, dtype=np.uint8).reshape(1400, 1700, 3),)),
    ],
    ids=["page", "clip", "words", "schema and adapter", "more than the context"],
)
def test_a_prompt_is_the_same_whoever_renders_it(asking: Asking, request_: Any) -> None:
    runner, engine = asking
    ready = runner.run(engine.fit(request_))
    inside = runner.run(engine._session.render(ready))
    assert ready.prepared.take().differs_in(inside) == ""
    assert engine.cost(ready) > inside.tokens


def test_a_preparer_that_is_killed_at_work_costs_no_page(asking: Asking) -> None:
    runner, engine = asking
    before = {process.pid for process in processes_of(engine)}

    async def story() -> list[Generation]:
        reading = asyncio.create_task(together(engine))
        while not engine._preparers._processes._busy:  # noqa: ASYNC110  a process wakes no one
            await asyncio.sleep(0)
        for process in list(engine._preparers._processes._busy):
            process.forked.kill()
        return await reading

    with structlog.testing.capture_logs() as logged:
        read = runner.run(story())

    assert all(answer.usage.output for answer in read)
    assert "preparer_died" in {line["event"] for line in logged}
    after = {process.pid for process in processes_of(engine)}
    assert len(after) == 2
    assert after != before


def test_what_is_prepared_and_given_up_is_freed(asking: Asking) -> None:
    runner, engine = asking
    ready = runner.run(engine.fit(asked(1)))
    held = engine._preparation._ready.total()
    with ready.prepared:
        assert isinstance(ready.prepared, Prepared)
    assert held > engine._preparation._ready.total() == 0
    assert runner.run(engine.generate(ready)).usage.output, "it can still be read"
    assert engine._preparation._ready.total() == 0


def test_an_answer_is_never_another_pages(asking: Asking) -> None:
    """Whatever a preparer calls a picture, vLLM keeps it by what the worker calls it."""
    runner, engine = asking
    one, other = (runner.run(engine.fit(asked(number, instruction="Read."))) for number in (0, 4))
    first, second = one.prepared.take(), other.prepared.take()
    names = [tuple(rendered.prompt["mm_hashes"]["image"]) for rendered in (first, second)]
    assert len(set(names)) == 2
    again = runner.run(engine.fit(asked(0, instruction="Read it.")))
    assert tuple(again.prepared.take().prompt["mm_hashes"]["image"]) == names[0]


@pytest.mark.parametrize(
    "call",
    [
        (hostile_code.read, "/etc/passwd"),
        (hostile_code.read, "/proc/self/environ"),
        (hostile_code.kill_parent,),
        (os.fork,),
    ],
    ids=["files", "environment", "the template", "processes"],
)
def test_a_preparer_reaches_nothing(asking: Asking, call: tuple[Any, ...]) -> None:
    runner, engine = asking
    calling: Awaitable[Any] = engine._preparers._processes.call(ANYTHING, *call, timeout=READY_S)
    with pytest.raises(CallFailedError, match="PermissionError"):
        runner.run(calling)  # type: ignore[arg-type]


def test_preparers_that_render_otherwise_are_left_out(
    make_vllm: Callable[..., Engine], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Preparers.begin

    def begin_coarser(preparers: Preparers, configuring: asyncio.Future[Any]) -> None:
        async def coarser() -> tuple[Any, ...]:
            arguments, config, gpus = await configuring
            config = copy.deepcopy(config)
            config.model_config.multimodal_config.mm_processor_kwargs = {"max_pixels": 56 * 56}
            return arguments, config, gpus

        begin(preparers, asyncio.ensure_future(coarser()))

    monkeypatch.setattr(Preparers, "begin", begin_coarser)
    engine = make_vllm(checkpoint, preparers=1)

    with structlog.testing.capture_logs() as logged, started(engine) as runner:
        assert runner.run(engine.generate(replace(asked(0), max_output_tokens=4))).usage.output
        assert not processes_of(engine)

    (left_out,) = [line for line in logged if line["event"] == "preparers_left_out"]
    assert "PreparersDifferError" in left_out["because"]


def test_a_prompt_arrives_as_it_was_packed(asking: Asking) -> None:
    from pecia_workers.engines.vllm import rendering as vllm  # noqa: PLC0415  only where vLLM is

    runner, engine = asking
    for request in (asked(1), clip(), asked(2, images=())):
        rendered = runner.run(engine._session.render(request))
        arrived = vllm.unpacked(mapped(vllm.packed(rendered).descriptor, 2**30))
        assert vllm.Rendered(arrived).differs_in(rendered) == ""
        assert arrived.keys() == rendered.prompt.keys() - {"arrival_time"}


def _memory(*buffers: bytes, count: int | None = None) -> memoryview:
    lengths = struct.pack(f"<I{len(buffers)}Q", len(buffers) if count is None else count, *map(len, buffers))
    return mapped(sealed([memoryview(lengths), *(memoryview(one) for one in buffers)]), 2**30)


def _prompt(pictures: Any) -> memoryview:
    return _memory(msgspec.msgpack.encode({"prompt_token_ids": [1], "mm_kwargs": pictures}))


PICKLED = msgspec.msgpack.Ext(_PICKLE, pickle.dumps(hostile_code.Bomb(Path("/tmp/never"))))  # noqa: S108
ELEMENT = {"data": ["uint8", [4], 7], "field": ["batched", {}]}


@pytest.mark.parametrize(
    "memory",
    [
        lambda: _memory(b"no msgpack"),
        lambda: _memory(msgspec.msgpack.encode({"prompt_token_ids": "words"})),
        lambda: _memory(msgspec.msgpack.encode({"prompt_token_ids": [1]}), count=2**32 - 1),
        lambda: _memory(b"", count=200),
        lambda: _prompt({"image": [{"x": ELEMENT}]}),
        lambda: _prompt({"image": [{"x": {"data": 1, "field": ["__class__", {}]}}]}),
        lambda: _prompt(PICKLED),
        lambda: _prompt({"image": [{"x": PICKLED}]}),
    ],
    ids=[
        *("garbage", "types", "buffers", "lengths", "a buffer that is not there", "a field"),
        *("pickle", "deep pickle"),
    ],
)
def test_what_is_no_prompt_is_refused(
    memory: Callable[[], memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pecia_workers.engines.vllm import rendering as vllm  # noqa: PLC0415  only where vLLM is

    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    with pytest.raises(InvalidMemoryError):
        vllm.unpacked(memory())
