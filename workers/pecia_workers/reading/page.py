"""The read stage: from a page's payload to its text, and to fields that follow the task's schema."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, cast

from pydantic import SecretStr

from pecia_schemas import tracing
from pecia_schemas.blocks import BlockKind, Doubt, DoubtReason, mean_confidence, storable_text, text_of
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Page, Shrunk, Timings, TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType, Prefer, Preparation, ReadPages, Witness, languages_of
from pecia_workers.engines.reader_cards import Card, card_of, sampling_for
from pecia_workers.media.decoder import Decoder, Spool, turn_of
from pecia_workers.media.pages import PageImage, Plan
from pecia_workers.protocol.base import Capabilities, EngineRefusedError, EngineRequest, Generation, Generator
from pecia_workers.protocol.parts import ClaimedPart, Done, worked_s
from pecia_workers.reading.answers import with_blocks
from pecia_workers.reading.caching import Look, ResultCache
from pecia_workers.reading.fields import Fields, closed, judge, merge_rules
from pecia_workers.reading.ladder import Ladder, Reading, best, judged, sureness, words_below
from pecia_workers.reading.markup import blocks_of
from pecia_workers.reading.rows import with_missing_fields
from pecia_workers.witness.witnesses import Witnesses


def check_demands(task: ReadPages[Any], engine: Capabilities) -> None:
    """Raise `EngineRefusedError`, with a failure code, for the first demand of the task that the engine cannot meet."""
    name = f"The engine {engine.name}"
    if task.language is not None and not engine.reads(task.language):
        first = languages_of(task.language)[0]
        read = f"{name} reads {', '.join(sorted(engine.languages or ()))}. {engine.remedies.get(first, '')}"
        raise EngineRefusedError(read.strip(), FailureCode.LANGUAGE_UNAVAILABLE)
    if task.fields is not None and not engine.fields:
        raise EngineRefusedError(f"{name} reads text alone.", FailureCode.FIELDS_UNAVAILABLE)
    if task.instructions is not None and not engine.instructions:
        raise EngineRefusedError(f"{name} takes no instructions.", FailureCode.INSTRUCTIONS_UNAVAILABLE)
    check_adapter(task.adapter, engine)


def check_adapter(adapter: str | None, engine: Capabilities) -> None:
    """Raise `EngineRefusedError` if the engine has no adapter of this name."""
    if adapter is not None and adapter not in engine.adapters:
        found = f"Adapters of the engine {engine.name}: {', '.join(sorted(engine.adapters)) or 'none'}."
        raise EngineRefusedError(found, FailureCode.ADAPTER_UNAVAILABLE)


_WRITTEN: Final = frozenset({"en", "ko", "zh"})


@cache
def instruction_for(what: str, language: str | None) -> str:
    """Return the instruction for a type of document, or a style of captions; in English for a language without one."""
    name = f"{what}.{language if language in _WRITTEN else 'en'}.md"
    return (files("pecia_workers.reading") / "prompts" / name).read_text(encoding="utf-8").strip()


def page_instruction(card: Card, document_type: DocumentType, language: str | None) -> str:
    """Return the prompt of a reader card for a page."""
    return instruction_for(document_type, language) if card.prompt is None else card.prompt


def fields_instruction(schema: Mapping[str, Any], language: str | None) -> str:
    """Return the instruction to fill a page's fields. It quotes the schema: guided decoding hides its descriptions."""
    written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return instruction_for("fields", language).replace("{schema}", written)


def page_of(
    number: int, image: PageImage, readings: list[Reading], fields: Fields | None, timings: Timings
) -> Page:
    """Return the page with the text of its best reading; `number` counts from 1."""
    kept = best(readings)
    others = [reading for reading in readings if reading is not kept]
    forms = fields.others if fields else ()
    height, width = image.pixels.shape[:2]
    return Page(
        number=number,
        blocks=kept.generation.blocks or blocks_of(kept.generation.text),
        verdict=kept.generation.verdict,
        coverage=kept.generation.coverage,
        doubts=kept.generation.doubts,
        confidence=mean_confidence(kept.generation.lines) or sureness(kept.generation.tokens),
        width=width,
        height=height,
        blank=image.blank,
        attachments=image.attachments,
        rotation=image.rotation,
        skew=image.skew,
        scale=image.scale,
        engine=kept.engine,
        fields=fields.values if fields else None,
        fields_text=storable_text(fields.text) if fields and fields.text is not None else None,
        shrunk=Shrunk(width=kept.seen[0], height=kept.seen[1]) if kept.seen != (width, height) else None,
        change=kept.change,
        attempts=(*(one.attempt() for one in others), *(one.attempt(fields=True) for one in forms)),
        usage=spent([kept, *([fields.kept] if fields and fields.kept else [])], [*others, *forms]),
        timings=timings.model_copy(update={"first_token": kept.generation.first_token_s}),
    )


def spent(kept: Iterable[Reading], others: Iterable[Reading]) -> TokenUsage:
    """Return the tokens of all readings; those of discarded readings are `wasted` as well."""
    lost = [reading.generation.usage for reading in others]
    wasted = sum(usage.prompt + usage.output for usage in lost)
    return sum([*(reading.generation.usage for reading in kept), *lost], TokenUsage(wasted=wasted))


_LAYER: Final = "layer"
"""Name of the engine of pages whose text comes, at least in part, from the file's text layer."""
_SURE: Final = 0.95
"""Token probability from which a model is sure of a word."""
_TEXT_UNTIL: Final = 0.5
_FIELDS_UNTIL: Final = 0.75
"""Shares of a part's timeout after which no further reading of its text, or fields, starts."""


class ReadPage:
    """Fetches, decodes and reads one page at a time, for many callers at once."""

    def __init__(
        self,
        spool: Spool,
        decoder: Decoder,
        engine: Generator,
        settings: WorkerSettings,
        cache: ResultCache,
        *,
        fallback: Generator | None = None,
        witnesses: Witnesses | None = None,
    ) -> None:
        self._spool = spool
        self._decoder = decoder
        self._engine = engine
        self._cache = cache
        self._witnesses = witnesses or Witnesses(Witness.NONE)
        self._fallback = fallback
        self._for_text = Ladder(engine, fallback, most=settings.max_readings)
        self._for_fields = Ladder(engine, most=settings.max_readings)
        self._timeout_s = settings.part_timeout.total_seconds()
        self._steps = settings.prepare
        self._log_probabilities = settings.log_probabilities
        self._named_card = settings.card

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the claimed page's text, and its fields if the task asks for any.

        Raises `MediaError`, `PayloadMissingError`, `PayloadCorruptError`, `EngineError`.
        """
        task = cast("ReadPages[Any]", part.task)
        check_demands(task, self._engine.capabilities)
        clock = asyncio.get_running_loop().time
        started = clock()
        image = await self._page(part, task)
        decoded = clock()
        request = self._request(part, task, image)
        # The engine reads nothing of a blank page, and only the fields of a page that brings its own text.
        requests = [] if image.blank or image.blocks else [request]
        if task.fields is not None and not image.blank:
            requests.append(_form(request, task))
        look: Look[Page] = Look()
        if requests and not image.unread:
            look = await self._cache.look(part, requests, Page, self._witnesses.choice(task))
        requested = clock()
        timings = Timings(queued=part.queued_s + requested - decoded, decode=decoded - started)
        if look.found:
            earlier = _with_doubts(_moved(look.found, part, image, timings), image)
            return Done(_with_barcodes(earlier, image))
        own = await self._own(request, image) if image.blocks else None
        if own:
            image = replace(image, blocks=own.generation.blocks)
        with closing(self._witnesses.begin(task, request, image)) as witnessed:
            readings = [own] if own else await self._read(request, image)
            fields = await self._fill(request, task, readings)
            took = timings.model_copy(update={"engine": clock() - requested})
            page = _with_doubts(page_of(part.ordinal + 1, image, readings, fields, took), image)
            if fields:
                schema = _schema_of(task)
                page = with_missing_fields(
                    page.model_copy(update={"merge": merge_rules(schema)}), fields, schema
                )
            page = await witnessed.compared(page, words_below(best(readings).generation.tokens, _SURE))
        page = _with_barcodes(page, image)
        return look.done(page, complete=task.fields is None or page.fields is not None)

    async def _page(self, part: ClaimedPart, task: ReadPages[Any]) -> PageImage:
        card = self._card
        plan = Plan(
            steps=self._steps if task.prepare is None else tuple(map(Preparation, task.prepare)),
            most_pixels=min(self._engine.capabilities.most_pixels, card.most_pixels),
            longest_side=min(self._engine.capabilities.longest_side, card.longest_side),
            prefer=Prefer(task.prefer),
            completes=self._completing(task.language) is not None,
            witness=self._witnesses.choice(task) in (Witness.AUTO, Witness.LAYER),
        )
        payload, password = part.payload, cast("SecretStr | None", task.password)
        with tracing.span("prepare"):
            async with self._spool.open(payload) as path:
                turn = turn_of(part, payload)
                return await self._decoder.page(path, part.ordinal, plan, password, turn=turn)

    @property
    def _card(self) -> Card:
        """Card of the engine's model, which a server reports only once it has started."""
        return card_of(self._engine.capabilities.model, self._named_card)

    def _request(self, part: ClaimedPart, task: ReadPages[Any], image: PageImage) -> EngineRequest:
        card = self._card
        sampling, most = sampling_for(task, card=card)
        instruction = page_instruction(card, DocumentType(task.document_type), task.language)
        return EngineRequest(
            id=f"{part.id}:{part.attempt}",
            part=part.id,
            images=(image.pixels,),
            workload=task.document_type,
            language=task.language,
            instruction=task.instructions or instruction,
            system=card.system,
            sampling=sampling,
            adapter=task.adapter,
            log_probabilities=self._log_probabilities,
            priority=part.lane.rank,
            max_output_tokens=most,
            tenant=self._cache.tenant(part),
        )

    def _completing(self, language: str | None) -> Generator | None:
        """Return the engine that reads the areas outside a page's text layer, if there is one for this language."""
        for engine in (self._engine, self._fallback, self._witnesses.engine):
            if engine and engine.capabilities.completes and engine.capabilities.reads(language):
                return engine
        return None

    async def _own(self, request: EngineRequest, image: PageImage) -> Reading:
        """Return the page's text layer, completed by an engine where it leaves areas out."""
        if image.unread and (engine := self._completing(request.language)):
            rest = replace(request, id=f"{request.id}:rest", known=image.pieces, unread=image.unread)
            generation = await engine.generate(rest)
        else:
            unread = (Doubt(reason=DoubtReason.UNCOVERED, box=box) for box in image.unread)
            doubts = (*image.doubts, *unread)
            text = text_of(image.blocks)
            generation = Generation(text=text, verdict=Verdict.OK, blocks=image.blocks, doubts=doubts)
        return Reading(engine=_LAYER, change=None, generation=judged(generation), seen=request.size)

    async def _read(self, request: EngineRequest, image: PageImage) -> list[Reading]:
        if image.blank:
            nothing = Generation(text="", verdict=Verdict.BLANK)
            name = self._engine.capabilities.name
            return [Reading(engine=name, change=None, generation=nothing, seen=request.size)]
        answer = self._card.answer
        return await self._for_text.climb(
            request,
            self._end_of(_TEXT_UNTIL),
            judge=lambda generation: judged(with_blocks(answer, request.size, generation)),
        )

    async def _fill(
        self, request: EngineRequest, task: ReadPages[Any], readings: list[Reading]
    ) -> Fields | None:
        """Request the fields of the same picture, which is in the engine's prefix cache by now.

        A page without text has no fields, whatever a model would invent.
        """
        if task.fields is None or best(readings).generation.verdict in (Verdict.BLANK, Verdict.UNREADABLE):
            return None
        schema, form = _schema_of(task), _form(request, task)
        try:
            answers = await self._for_fields.climb(form, self._end_of(_FIELDS_UNTIL), judge=judge(schema))
        except EngineRefusedError as error:  # the picture was read a moment ago, so the schema is too much
            raise EngineRefusedError(str(error), FailureCode.FIELDS_UNAVAILABLE) from None
        return Fields.of(answers, schema)

    def _end_of(self, share: float) -> float:
        """Return when a share of the part's timeout will have passed, by the loop's clock."""
        return asyncio.get_running_loop().time() - worked_s() + share * self._timeout_s


def _form(request: EngineRequest, task: ReadPages[Any]) -> EngineRequest:
    """Return the request for the fields of the same page."""
    schema = _schema_of(task)
    return replace(
        request,
        id=f"{request.id}:fields",
        workload="fields",
        instruction=fields_instruction(schema, task.language),
        schema=closed(schema),
        log_probabilities=False,
    )


def _schema_of(task: ReadPages[Any]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", task.fields)  # a stored task holds no class


def _moved(earlier: Page, part: ClaimedPart, image: PageImage, timings: Timings) -> Page:
    """Return a cached page as this part's page: its number and orientation may differ."""
    update: dict[str, Any] = {"number": part.ordinal + 1, "attempts": (), "timings": timings}
    update |= {"rotation": image.rotation, "skew": image.skew, "scale": image.scale}
    update |= {"attachments": image.attachments}
    if image.blocks:  # only the fields were found
        update |= {"blocks": image.blocks, "doubts": image.doubts}
    return earlier.model_copy(update=update)


def _with_barcodes(page: Page, image: PageImage) -> Page:
    """Return the page with its barcodes after all text; they are not compared with readings."""
    blocks = (block for block in page.blocks if block.kind is not BlockKind.BARCODE)
    return page.model_copy(update={"blocks": (*blocks, *image.barcodes)}) if image.barcodes else page


def _with_doubts(page: Page, image: PageImage) -> Page:
    """Return the page with its decoder's doubts about damaged areas, which no engine can read."""
    doubts = tuple(doubt for doubt in image.doubts if doubt not in page.doubts)
    if not any(doubt.reason is DoubtReason.UNCOVERED for doubt in image.doubts):
        return page
    verdict = Verdict.worst(page.verdict, Verdict.INCOMPLETE)
    return page.model_copy(update={"verdict": verdict, "doubts": (*page.doubts, *doubts), "coverage": None})
