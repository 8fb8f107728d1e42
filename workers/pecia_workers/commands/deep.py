"""The thorough half of `pecia doctor`: what the stores say of each other, and its repair."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_workers.commands.showing import Finding
from pecia_workers.upkeep.differences import Difference, Found, Scene, differences, mend
from pecia_workers.upkeep.loop import open_stores

R = TypeVar("R")

_SHOWN = 3


def compare(settings: WorkerSettings) -> Found:
    """Return in what the stores differ; takes seconds, for there are two looks if the first finds something."""
    return _on_the_scene(settings, differences)


def repair(settings: WorkerSettings, found: Found) -> Found:
    """Put right what can be, and return what is left at another look."""

    async def mend_and_look(scene: Scene) -> Found:
        await mend(scene, found)
        return await differences(scene)

    return _on_the_scene(settings, mend_and_look)


def findings_of(found: Found) -> Iterator[Finding]:
    """Yield a finding for each kind of difference there can be."""
    for kind in Difference:
        items = found.get(kind, frozenset())
        detail = "none"
        if items:
            shown = ", ".join(sorted(map(_name, items))[:_SHOWN])
            detail = f"{len(items)}: {kind.sentence} ({shown}{', …' if len(items) > _SHOWN else ''})"
        yield Finding(subject=kind.value, ok=not items, detail=detail)


def _name(item: object) -> str:
    """Return what tells the thing to an operator: an id, as a rule."""
    if isinstance(item, tuple):
        return str(item[0])
    return str(getattr(item, "id", item))


def _on_the_scene(settings: WorkerSettings, play: Callable[[Scene], Awaitable[R]]) -> R:
    async def whole() -> R:
        payloads = PayloadStore.open(settings.payload_url, settings.payload_options, keys=settings.keyring)
        async with open_stores(settings) as stores:
            return await play(Scene(stores=stores, payloads=payloads, settings=settings))

    return asyncio.run(whole())
