"""The stages that one worker serves, with their decoders, its engine behind a batcher, fallback and witness.

Includes ingest, which validates a payload and splits it into priced parts.
"""

import asyncio
import errno
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import structlog
from obstore.exceptions import BaseError
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import tasks, tracing
from pecia_schemas.encryption import DecryptionError
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import PageRanges, PayloadRef
from pecia_schemas.payloads import PayloadCorruptError, PayloadMissingError, PayloadStore
from pecia_schemas.running import Lack, Need
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_schemas.tasks import Witness
from pecia_schemas.threads import end
from pecia_workers.batching.batcher import Batcher, Meter, Priced
from pecia_workers.batching.learned import inherited_headroom, shared_lengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.bundles.stage import SplitBundle
from pecia_workers.captioning.captions import CaptionSegment, SummarizeVideo
from pecia_workers.engines.registry import create_engine, create_witness
from pecia_workers.ledger.database import retry_unavailable
from pecia_workers.ledger.ledger import Ledger, PartLostError, unheld
from pecia_workers.ledger.workers import WorkerIdentity, readers_can, stages_on_duty
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.media.decoder import Decoder, Spool, keep_swept, turn_of
from pecia_workers.media.pages import FramePlan, Limits, MediaError, Stretch
from pecia_workers.media.turns import PostponedError, Turn
from pecia_workers.outgoing.sources import Intake
from pecia_workers.protocol import base
from pecia_workers.protocol.parts import (
    ClaimedPart,
    Cut,
    Failed,
    NewPart,
    Outcome,
    Postponed,
    StorageUnavailableError,
    limited,
    retry_delay,
)
from pecia_workers.reading.caching import ResultCache
from pecia_workers.reading.canary import Canaries
from pecia_workers.reading.page import ReadPage
from pecia_workers.witness.witnesses import Witnesses, witness_cpu_s, witness_processes

log = structlog.get_logger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_CODES = (
    (PayloadMissingError, FailureCode.PAYLOAD_MISSING),
    (PayloadCorruptError, FailureCode.PAYLOAD_CORRUPT),
    (base.EngineError, FailureCode.ENGINE_ERROR),
    (TimeoutError, FailureCode.TIMEOUT),
)


@dataclass(eq=False)
class Stages:
    """Runs parts through their stages. `resources` owns everything that `start` starts."""

    settings: WorkerSettings
    identity: WorkerIdentity
    engine: base.Engine | None
    ledger: Ledger
    database: AsyncEngine
    resources: AsyncExitStack
    handlers: dict[Stage, Callable[[ClaimedPart], Awaitable[Outcome]]] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    cache: ResultCache = field(default_factory=ResultCache.off)
    batcher: Batcher | None = None
    canaries: Canaries | None = None

    async def start(self, priced: Priced) -> base.Budget:
        """Start the decoders, and the engine if there is one; return the budget for claims."""
        settings = self.settings
        scratch = ScratchDirectory.create(Path(settings.spool_dir) if settings.spool_dir else None)
        self.resources.callback(scratch.remove)
        store = PayloadStore.open(settings.payload_url, settings.payload_options, keys=settings.keyring)
        spool = Spool(store, scratch.path)
        sweeps = asyncio.ensure_future(keep_swept(spool, partial(unheld, self.database)))
        self.resources.push_async_callback(end, sweeps)
        decoder = Decoder(settings)
        self.resources.push_async_callback(decoder.stop)

        async def served() -> frozenset[Stage]:
            """Return the stages that the fleet serves: by its settings, and by its live workers."""
            return base.stages_served(settings) | await retry_unavailable(
                partial(stages_on_duty, self.database)
            )

        self.handlers[Stage.INGEST] = Ingest(
            spool,
            decoder,
            settings,
            served,
            Intake(store, self.ledger, scratch.path, settings),
            readers_can=lambda *need: retry_unavailable(partial(readers_can, self.database, *need)),
        )
        self.handlers[Stage.SPLIT] = SplitBundle(self.ledger.pages, self.ledger.corrected)
        if self.engine is None:
            await decoder.start()
            # Twice the decoders, for a slow document must not hold all that may be claimed.
            budget = base.Budget(slots=2 * decoder.slots, tokens=None)
        else:
            budget = await self._start_reading(self.engine, spool, decoder, priced)
        decoder.share(min(budget.slots, settings.max_in_flight or budget.slots))
        return budget

    async def _start_reading(
        self, engine: base.Engine, spool: Spool, decoder: Decoder, priced: Priced
    ) -> base.Budget:
        settings, enter = self.settings, self.resources.enter_async_context
        # Beside each other: a model takes a minute.
        _, _, fallback, (witnesses, seconds) = await asyncio.gather(
            decoder.start(), self._started(engine), self._fallback(), self._witnesses(engine, priced)
        )
        lengths = await enter(shared_lengths(self.database, settings.output_quantile))
        policy = policy_named(
            PolicyName(settings.admission), BatchLimits.of(settings), settings.beside_urgent
        )
        headroom = await enter(inherited_headroom(self.database, self.identity))
        batcher = self.batcher = Batcher(engine, policy, lengths, priced=priced, headroom=headroom)
        self.resources.callback(_report_use, engine, batcher)
        generator = self.meter.on(batcher)
        slots, tokens = engine.budget.slots, engine.budget.tokens
        if settings.canary_every and Stage.READ in self.identity.stages:
            generator = self.canaries = Canaries(generator, slots, settings, lambda part: priced(part, 0))
            self.resources.push_async_callback(self.canaries.stop)
            await self.canaries.prove()
        engines = [engine.capabilities, *(one.capabilities for one in (fallback, seconds) if one)]
        cache = self.cache = ResultCache(self.ledger.earlier, settings, engines)
        self.handlers[Stage.READ] = ReadPage(
            spool, decoder, generator, settings, cache, fallback=fallback, witnesses=witnesses
        )
        self.handlers[Stage.CAPTION] = CaptionSegment(spool, decoder, generator, settings, cache)
        self.handlers[Stage.SUMMARIZE] = SummarizeVideo(self.ledger.captions, generator, settings, cache)
        # The engine never waits for a page: two are made ready by each decoder. A page that waits for its witness, or
        # for a canary, takes no more than a slot. Without a token budget the engine's slots include requests that are
        # made ready, so that an urgent page waits behind no more.
        if tokens is not None:
            slots += 2 * decoder.slots
            tokens = tokens * slots // engine.budget.slots
        spare = witnesses.spare + (self.canaries.spare if self.canaries else 0)
        return base.Budget(slots=slots + spare, tokens=tokens)

    async def _started(self, engine: base.Engine) -> base.Engine:
        self.resources.push_async_callback(engine.stop)  # before the start, which a signal may cut short
        await engine.start()
        return engine

    async def _fallback(self) -> base.Generator | None:
        settings = self.settings
        if settings.fallback_engine in ("", settings.engine) or Stage.READ not in self.identity.stages:
            return None
        changed = {"engine": settings.fallback_engine, "engine_processes": settings.fallback_processes}
        engine = create_engine(settings.model_copy(update=changed))
        return self.meter.on(await self._started(engine), traced=True)

    async def _witnesses(
        self, engine: base.Engine, priced: Priced
    ) -> tuple[Witnesses, base.Generator | None]:
        """Return the witnesses beside this engine, and the CPU engine if it is started for that."""
        settings = self.settings
        choice = Witness(settings.witness)
        samples = engine.capabilities.samples
        if Stage.READ not in self.identity.stages or (choice is Witness.AUTO and not samples):
            choice = Witness.NONE
        if choice not in (Witness.AUTO, Witness.OCR):
            return Witnesses(choice), None
        processes = witness_processes(settings)
        try:
            witness = create_witness(settings, processes)
        except base.EngineUnavailableError as error:
            if choice is Witness.OCR:
                raise
            log.warning("witness_layers_alone", reason=str(error))
            return Witnesses(choice), None
        await self._started(witness)
        log.info("witness_started", processes=processes, pages_per_s=round(processes / witness_cpu_s(), 1))
        return Witnesses(choice, witness, processes, lambda part: priced(part, 0)), witness

    @property
    def memory(self) -> float:
        """Share of its budget for which the engine has memory, 0 to 1."""
        return self.batcher.memory if self.batcher else 1.0

    async def run(self, part: ClaimedPart) -> Outcome:
        """Run the part's stage; errors become outcomes, except a lost part, engine or storage."""
        if part.deaths >= self.settings.max_deaths:
            return Failed(Failure.of(FailureCode.POISONED, attempt=part.attempt))
        try:
            async with limited(self.settings.part_timeout.total_seconds()):
                outcome = self.meter.settled(part.id, await self.handlers[part.stage](part))
                if self.canaries and self.meter.spent(part.id, part.queued_s):
                    await self.canaries.vouch(part.id)
                return outcome
        except (PartLostError, StorageUnavailableError, base.EngineDeadError):
            raise
        except PostponedError as error:
            return Postponed(timedelta(seconds=error.seconds))
        except Exception as error:  # noqa: BLE001  one part's error is one part's failure
            if isinstance(error, BaseError) or (isinstance(error, OSError) and error.errno in _FULL):
                reason = error.strerror if isinstance(error, OSError) else type(error).__name__
                raise StorageUnavailableError(reason) from None
            failure = failure_of(error, attempt=part.attempt)
            # The type alone: an exception's text may hold the document's.
            log.warning("part_failed", code=failure.code, error=type(error).__name__)
            retry_in = retry_delay(failure.code, part.strikes, self.settings)
            return Failed(failure, retry_in, self.meter.spent(part.id, part.queued_s))
        finally:
            self.meter.forget(part.id)


def _report_use(engine: base.Engine, batcher: Batcher) -> None:
    with suppress(base.EngineError):
        load, packing = engine.load(), batcher.packing.share
        log.info("engine_use", packing=packing, preemptions=load.preemptions, drifted=load.drifted)


def failure_of(error: Exception, *, attempt: int) -> Failure:
    """Return the failure for an error. It holds no text of the document."""
    match error:
        case MediaError():
            return Failure.of(error.code, error.found, attempt=attempt)
        case base.EngineRefusedError():
            return Failure.of(error.code, str(error), attempt=attempt)
        case DecryptionError():
            return Failure.of(FailureCode.KEY_UNAVAILABLE, f"Needs the key {error.key!r}.", attempt=attempt)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FailureCode.INTERNAL)
    return Failure.of(code, attempt=attempt)


@dataclass(eq=False)
class Ingest:
    """Splits payloads into parts for their stage.

    What no engine of the fleet can do must fail now, neither wait for ever nor page by page.
    """

    spool: Spool
    decoder: Decoder
    settings: WorkerSettings
    stages_served: Callable[[], Awaitable[frozenset[Stage]]]
    """What the fleet's engines can do."""
    intake: Callable[[ClaimedPart], Awaitable[PayloadRef]]
    """Returns a part's payload, which the fleet may have to fetch first."""
    readers_can: Callable[[Need, str], Awaitable[bool]]
    """Whether engines fill fields too, or read a language."""

    async def __call__(self, part: ClaimedPart) -> Cut:
        """Return the parts of the claimed payload.

        Raises `MediaError`, `PartLostError`, `PayloadMissingError`, `PayloadCorruptError`.
        """
        task = part.task
        if isinstance(task, tasks.ReadPages):
            if task.language is not None and not await self.readers_can(Need.LANGUAGE, task.language):
                lack = Lack(job_id=None, stage=Stage.READ, need=Need.LANGUAGE, value=task.language, parts=1)
                found = f"{lack.sentence[0].upper()}{lack.sentence[1:]}."
                raise MediaError(FailureCode.LANGUAGE_UNAVAILABLE, found)
            if task.fields is not None and not await self.readers_can(Need.FIELDS, "true"):
                raise MediaError(FailureCode.FIELDS_UNAVAILABLE, "No engine of this fleet fills fields.")
        elif Stage.CAPTION not in await self.stages_served():
            raise MediaError(FailureCode.NO_ENGINE, "No engine of this fleet captions videos.")
        with tracing.span("fetch"):
            payload = await self.intake(part)
        with tracing.span("cut"):
            turn = turn_of(part, payload)
            async with self.spool.open(payload) as path:
                if isinstance(task, tasks.CaptionVideo):
                    return await self._segments(path, task, turn)
                assert isinstance(task, tasks.ReadPages)  # noqa: S101  there is no other task
                chosen = None if task.pages is None else PageRanges.parse(task.pages)
                password = cast("SecretStr | None", task.password)
                infos = await self.decoder.inspect(path, chosen, password, turn=turn)
                document_type = tasks.DocumentType(task.document_type)
                parts = []
                for page in infos:
                    cost = tasks.page_cost(page.width, page.height, document_type)
                    parts.append(NewPart(ordinal=page.index, cost=cost, width=page.width, height=page.height))
                if isinstance(task, tasks.ReadBundle):
                    split = NewPart(ordinal=max(part.ordinal for part in parts) + 1, cost=tasks.SPLIT_COST)
                    return Cut(Stage.READ, parts, (Stage.SPLIT, split))
                return Cut(Stage.READ, parts)

    async def _segments(self, path: Path, task: tasks.CaptionVideo, turn: Turn) -> Cut:
        info = await self.decoder.probe(path, turn=turn)
        length = (task.segments or self.settings.video_segment).total_seconds()
        count, plan = segment_count(info.duration, length), FramePlan.of(self.settings)
        Limits.of(self.settings).check_segments(count)
        style = tasks.CaptionStyle(task.style)
        parts = []
        for number in range(count):
            start = length * number
            end = info.duration if number == count - 1 else length * (number + 1)
            frames = plan.count(Stretch(start=start, end=end), info.fps)
            width, height = plan.size(frames, info.width, info.height)
            cost = tasks.segment_cost(frames, width, height, style)
            parts.append(
                NewPart(ordinal=number, cost=cost, width=width, height=height, start_s=start, end_s=end)
            )
        if count == 1:
            return Cut(Stage.CAPTION, parts)
        summary = NewPart(ordinal=count, cost=tasks.summary_cost(count, style))
        return Cut(Stage.CAPTION, parts, (Stage.SUMMARIZE, summary))


def segment_count(duration: float, length: float) -> int:
    """Return the number of segments of a video, in seconds; the last lasts half to one and a half `length`."""
    return max(1, math.floor(duration / length + 0.5))
