"""What makes two readings the same, who may share one, and who waits for whom."""

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pecia_schemas.blocks import Box, Line
from pecia_schemas.encryption import Keyring, new_key
from pecia_schemas.media import PayloadRef
from pecia_schemas.results import Page, TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane, Stage, new_id
from pecia_schemas.tasks import DocumentType, ReadDocument, task_to_json
from pecia_workers.engines.models import fingerprint, revision_of
from pecia_workers.protocol.base import Capabilities, ClipTimes, EngineRequest, Piece, Sampling
from pecia_workers.protocol.parts import ClaimedPart, Earlier
from pecia_workers.reading.caching import Look, ResultCache, identity_of, key_of, tenant_of
from tests.shared.limits import WAIT_S, until
from tests.shared.parts import claimed_part
from tests.shared.samples import page

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
REQUEST = EngineRequest(id="part:1", images=(PIXELS,), workload=DocumentType.MIXED, instruction="Copy it.")
OTHERWISE: dict[str, Any] = {
    "images": (PIXELS + 1,),
    "clip": ClipTimes(fps=10.0, indices=(0,), duration=1.0),
    "workload": DocumentType.CHART,
    "language": "ko",
    "instruction": "Copy all of it.",
    "sampling": Sampling(repetition_penalty=1.1),
    "system": "",
    "schema": {"type": "object"},
    "adapter": "radiology",
    "log_probabilities": True,
    "max_output_tokens": 100,
}
WITHOUT_EFFECT: dict[str, Any] = {
    "id": "part:2",
    "part": new_id(),
    "tenant": "another's",
    "priority": 2,
    "expected_output_tokens": 500,
    "prepared": nullcontext(),
    "until": 5.0,
    "known": (Line(text="Ward", box=Box(left=0, top=0, right=40, bottom=20)),),
    "unread": (Box(left=0, top=50, right=40, bottom=70),),
    "again": (Piece(corners=(0, 50, 40, 50, 40, 70, 0, 70), words=()),),
}
READER = {"engines": [("vllm", "tiny", "1")]}
TENANT = {"by": "clinic", "value": "north"}
MODEL = Capabilities(name="vllm", model="tiny", stages=frozenset({Stage.READ}), revision="1")
PAGE = page(3, text="Amoxicillin", engine="vllm", usage=TokenUsage(prompt=90, output=10))
KEYED: Look[Page] = Look(b"key")
READ_AT = datetime(2026, 11, 1, tzinfo=UTC)


def key(request: EngineRequest = REQUEST, **changes: Any) -> bytes:
    about: dict[str, Any] = {"reader": READER, "tenant": TENANT, "requests": [request], "keyring": Keyring()}
    return key_of(**(about | changes))


def test_every_part_of_a_request_is_known_to_change_the_reading_or_not() -> None:
    assert {field.name for field in fields(EngineRequest)} == OTHERWISE.keys() | WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_changes_the_reading_changes_the_key(name: str) -> None:
    assert key(replace(REQUEST, **{name: OTHERWISE[name]})) != key()


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_does_not_change_the_reading_leaves_the_key(name: str) -> None:
    assert key(replace(REQUEST, **{name: WITHOUT_EFFECT[name]})) == key()


def test_who_reads_for_whom_and_what_else_is_asked_changes_the_key() -> None:
    form = replace(REQUEST, instruction="Fill it in.")
    keys = {
        key(),
        key(reader={"engines": [("vllm", "tiny", "2")]}),
        key(tenant={"by": "clinic", "value": "south"}),
        key(requests=[REQUEST, form]),
    }
    assert len(keys) == 4


@given(at=st.integers(0, PIXELS.size - 1), by=st.integers(1, 255))
def test_one_other_pixel_is_another_page(at: int, by: int) -> None:
    other = PIXELS.copy()
    other.flat[at] ^= np.uint8(by)
    assert key(replace(REQUEST, images=(other,))) != key()


def test_the_same_bytes_in_another_shape_are_another_page() -> None:
    lying = replace(REQUEST, images=(PIXELS.reshape(6, 4, 3),))
    parted = replace(REQUEST, images=(PIXELS[:2], PIXELS[2:]))
    assert len({key(), key(lying), key(parted)}) == 3


def test_without_the_encryption_key_a_cache_key_does_not_tell_what_was_read() -> None:
    rings = [Keyring.of(SecretStr(json.dumps({"now": new_key()}))) for _ in range(2)]
    assert len({key(), *(key(keyring=ring) for ring in rings)}) == 3


def claimed(*, lane: Lane = Lane.NORMAL, cache: bool = True, **of_job: Any) -> ClaimedPart:
    task = ReadDocument(PayloadRef(sha256="0" * 64, size=1, media_type=None), cache=cache)
    return claimed_part(lane=lane, stored_task=task_to_json(task), queued_s=0.0, **of_job)


NORTH, SOUTH = {"clinic": "north", "visit": "1"}, {"clinic": "south", "visit": "1"}


@pytest.mark.parametrize(
    ("by", "one", "other", "shared"),
    [
        ("", {"client": "app", "metadata": NORTH}, {"client": "app", "metadata": NORTH}, True),
        ("", {"client": "app", "metadata": NORTH}, {"client": "app", "metadata": SOUTH}, False),
        ("", {"client": "app", "metadata": NORTH}, {"client": "app", "metadata": {}}, False),
        ("", {"client": "app"}, {"client": "batch"}, False),
        ("clinic", {"client": "app", "metadata": NORTH}, {"client": "batch", "metadata": {"clinic": "north"}}, True),
        ("clinic", {"client": "app", "metadata": NORTH}, {"client": "app", "metadata": SOUTH}, False),
        ("clinic", {"client": "app", "metadata": NORTH}, {"client": "app", "metadata": {}}, False),
        ("clinic", {"client": "app", "metadata": {"visit": "1"}}, {"client": "app", "metadata": {"visit": "2"}}, False),
        ("clinic", {"client": "app", "metadata": {"visit": "1"}}, {"client": "app", "metadata": {"visit": "1"}}, True),
    ],
)  # fmt: skip
def test_tenants_share_results(by: str, one: dict[str, Any], other: dict[str, Any], *, shared: bool) -> None:
    assert (tenant_of(claimed(**one), by) == tenant_of(claimed(**other), by)) is shared
    cache = ResultCache(None, WorkerSettings(cache_by=by))
    assert (cache.tenant(claimed(**one)) == cache.tenant(claimed(**other))) is shared


def test_a_model_that_may_change_unseen_shares_nothing_unless_the_fleet_says_which_it_is() -> None:
    unseen = replace(MODEL, name="openai", revision=None)
    assert identity_of(WorkerSettings(), [unseen]) is None
    assert identity_of(WorkerSettings(), [MODEL, unseen]) is None
    told = [identity_of(WorkerSettings(cache_revision=name), [unseen]) for name in ("a", "b")]
    assert None not in told
    assert told[0] != told[1]


@pytest.mark.parametrize(
    "changed", [{"max_model_len": 512}, {"engine_options": {"dtype": "half"}}, {"max_readings": 1}]
)
def test_settings_that_change_what_is_read_make_another_reader(changed: dict[str, Any]) -> None:
    assert identity_of(WorkerSettings(**changed), [MODEL]) != identity_of(WorkerSettings(), [MODEL])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def made(name: str, weights: bytes = b"weights", **files: bytes) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        for file, content in {"config.json": b"{}", "model.safetensors": weights, **files}.items():
            (directory / file).write_bytes(content)
        return directory

    return made


def test_a_copy_of_a_checkpoint_has_its_fingerprint_a_tuned_one_not(checkpoint: Callable[..., Path]) -> None:
    weights = bytes(3 * 1024**2)
    tuned = bytearray(weights)
    tuned[2 * 1024**2 + 5] = 1
    here, there = checkpoint("here", weights), checkpoint("there", weights, **{".lock": b"x"})
    assert fingerprint([here]) == fingerprint([there])
    others = [checkpoint("tuned", bytes(tuned)), checkpoint("more", weights, readme=b"x")]
    assert fingerprint([here]) not in {fingerprint([other]) for other in others}


def test_files_in_the_hubs_cache_go_by_their_names(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", checkpoint("snapshot")
    blobs.mkdir()
    told = set()
    for name in ("0" * 64, "1" * 64):
        (blobs / name).write_bytes(b"never read")
        (snapshot / "model.safetensors").unlink()
        (snapshot / "model.safetensors").symlink_to(blobs / name)
        told.add(fingerprint([snapshot]))

    assert len(told) == 2


def test_another_adapter_of_that_name_is_a_revision_no_file_none(checkpoint: Callable[..., Path]) -> None:
    model = str(checkpoint("model"))
    assert revision_of(WorkerSettings(model=f"{model}/gone")) is None
    revisions = {
        revision_of(WorkerSettings(model=model, adapters=adapters))
        for adapters in ({}, {"a": str(checkpoint("one", b"1"))}, {"a": str(checkpoint("two", b"2"))})
    }
    assert len(revisions) == 3
    assert None not in revisions


class Kept:
    """Results that are kept, and how many looks there were."""

    def __init__(self) -> None:
        self.results: dict[bytes, Earlier] = {}
        self.looks = 0

    async def find(self, cache_key: bytes) -> Earlier | None:
        self.looks += 1
        await asyncio.sleep(0)
        return self.results.get(cache_key)

    def keep(self, look: Look[Page], part: ClaimedPart, page: Page = PAGE) -> None:
        assert look.key
        self.results[look.key] = Earlier(part=part.id, content=page.model_dump(mode="json"), read_at=READ_AT)


def cache_of(kept: Kept, **settings: Any) -> ResultCache:
    return ResultCache(kept.find, WorkerSettings(**settings), [MODEL])


async def test_what_is_found_says_whose_it_was_and_took_nothing() -> None:
    kept, first = Kept(), claimed()
    cache = cache_of(kept)
    kept.keep(await cache.look(first, [REQUEST], Page), first)
    cache.ended(first.id)

    found = (await cache.look(claimed(), [REQUEST], Page)).found

    assert found
    assert (found.text, found.usage) == (PAGE.text, TokenUsage())
    assert found.cached_from
    assert (found.cached_from.part, found.cached_from.read_at) == (first.id, READ_AT)
    assert found.cached_from.usage == PAGE.usage


@pytest.mark.parametrize(
    ("part", "settings", "sampling"),
    [
        (claimed(cache=False), {}, Sampling()),
        (claimed(), {"cache": False}, Sampling()),
        (claimed(), {}, Sampling(temperature=0.3)),
    ],
    ids=["the task says no", "the fleet says no", "words picked by chance"],
)
def test_where_nothing_is_shared_there_is_no_look(
    part: ClaimedPart, settings: dict[str, Any], sampling: Sampling
) -> None:
    kept = Kept()
    look = asyncio.run(cache_of(kept, **settings).look(part, [replace(REQUEST, sampling=sampling)], Page))
    assert (look, kept.looks) == (Look(), 0)
    assert look.done(PAGE).cache_key is None


def test_words_picked_by_chance_are_shared_if_a_seed_says_which() -> None:
    request = replace(REQUEST, sampling=Sampling(temperature=0.3, seed=7))
    assert asyncio.run(cache_of(Kept()).look(claimed(), [request], Page)).key


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_good_and_whole_result_is_kept(verdict: Verdict) -> None:
    outcome = KEYED.done(PAGE.model_copy(update={"verdict": verdict}))
    assert outcome.cache_key == (b"key" if verdict is Verdict.OK else None)
    assert KEYED.done(PAGE, complete=False).cache_key is None


async def test_a_result_in_the_form_of_another_version_is_read_again() -> None:
    kept, first = Kept(), claimed()
    cache = cache_of(kept)
    look = await cache.look(first, [REQUEST], Page)
    assert look.key
    kept.results[look.key] = Earlier(part=first.id, content={"text": "as it was once"}, read_at=READ_AT)
    cache.ended(first.id)
    again = await cache.look(claimed(), [REQUEST], Page)
    assert (again.key, again.found) == (look.key, None)


async def looked(kept: Kept, times: int) -> None:
    """Return once so many looks have been taken and have come to nothing."""
    await until(lambda: kept.looks >= times)
    await asyncio.sleep(0.01)


async def test_of_equal_parts_one_is_read_and_the_others_wait_for_it() -> None:
    kept, first = Kept(), claimed()
    cache = cache_of(kept)
    read = await cache.look(first, [REQUEST], Page)
    others = [asyncio.create_task(cache.look(claimed(), [REQUEST], Page)) for _ in range(3)]
    different = await cache.look(claimed(), [replace(REQUEST, images=(PIXELS + 1,))], Page)
    assert (read.found, different.found) == (None, None)
    await looked(kept, 5)
    await asyncio.wait(others, timeout=0.1)
    assert not any(other.done() for other in others)

    kept.keep(read, first)
    cache.ended(first.id)
    assert [bool((await other).found) for other in others] == [True] * 3


async def test_all_that_waited_for_a_part_that_failed_go_on_at_once() -> None:
    kept, first = Kept(), claimed()
    cache = cache_of(kept)
    await cache.look(first, [REQUEST], Page)
    others = [asyncio.create_task(cache.look(claimed(), [REQUEST], Page)) for _ in range(3)]
    await looked(kept, 4)
    cache.ended(first.id)
    looks = await asyncio.wait_for(asyncio.gather(*others), WAIT_S)
    assert [look.found for look in looks] == [None] * 3


@pytest.mark.parametrize(
    ("lane", "limit"),
    [(Lane.BULK, {}), (Lane.URGENT, {"part_timeout": 0.4})],
    ids=["one of a lower lane", "one that takes too long"],
)
async def test_a_part_does_not_wait_for_ever(lane: Lane, limit: dict[str, Any]) -> None:
    cache = cache_of(Kept(), **limit)
    await cache.look(claimed(lane=lane), [REQUEST], Page)
    await asyncio.wait_for(cache.look(claimed(lane=Lane.URGENT), [REQUEST], Page), WAIT_S)
