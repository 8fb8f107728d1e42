"""Who is heard beside the model, in which order, and what becomes of a page whose witness is not."""

import asyncio
import os
from dataclasses import replace
from uuid import UUID, uuid4

import numpy as np
import pytest

from pecia import Page, ReadDocument, Verdict, Witness
from pecia_schemas.blocks import Block, BlockKind, Box, DoubtReason, Line, Source, Word, plain_blocks
from pecia_schemas.settings import WorkerSettings
from pecia_workers.layout.lines import words_of
from pecia_workers.media.pages import PageImage
from pecia_workers.protocol.base import EngineError, EngineRequest, Generation, Piece
from pecia_workers.witness.witnesses import WitnessedPage, Witnesses, witness_processes
from tests.shared.samples import engine_request
from tests.shared.samples import page as sample_page
from tests.shared.scripted_engine import ScriptedEngine

TEXT = "Sodium 140 mmol/l"
PIXELS = np.full((100, 300, 3), 255, np.uint8)
SEEN = (
    Block(
        kind=BlockKind.TEXT,
        text=TEXT,
        lines=(Line(text=TEXT, box=Box(left=0, top=0, right=170, bottom=20)),),
        source=Source.OCR,
    ),
)
READ = Generation(text=TEXT, verdict=Verdict.OK, blocks=SEEN)


def request(priority: int = 1) -> EngineRequest:
    return engine_request(str(uuid4()), part=uuid4(), images=(PIXELS,), workload="mixed", priority=priority)


def page(text: str = TEXT, source: Source = Source.MODEL) -> Page:
    return sample_page(blocks=plain_blocks(text, source=source), width=300, height=100, engine="vllm")


def task(**options: str) -> ReadDocument:
    return ReadDocument(b"", **options)  # type: ignore[arg-type]  # names of choices


def hear(witnesses: Witnesses, image: PageImage | None = None, **options: str) -> WitnessedPage:
    return witnesses.begin(task(**options), request(), image or PageImage(pixels=PIXELS))


async def test_what_the_cpu_engine_sees_struck_out_is_a_doubt_on_a_page_that_a_model_read() -> None:
    [line] = SEEN[0].lines
    words = (Word(text="Sodium", box=line.box), Word(text="140", box=line.box, struck=True))
    lines = (line.model_copy(update={"words": (*words, Word(text="mmol/l", box=line.box))}),)
    seen = replace(READ, blocks=(SEEN[0].model_copy(update={"lines": lines}),))
    witnesses = Witnesses(Witness.AUTO, ScriptedEngine(lambda _: seen), 1)

    compared = await hear(witnesses).compared(page())

    assert [(doubt.reason, doubt.text) for doubt in compared.doubts] == [(DoubtReason.STRUCK_OUT, "140")]
    assert compared.verdict is Verdict.REVIEW


async def test_one_of_twelve_lines_that_are_alike_is_missed_by_the_witness() -> None:
    # As the reader of tests/engine/reader copied them: eleven, each letter all but certain.
    line = "Paracetamol 500 mg 1 tablet"
    seen = tuple(
        Line(text=line, box=Box(left=0, top=20 * number, right=290, bottom=20 * number + 16))
        for number in range(12)
    )
    blocks = plain_blocks("\n".join([line] * 12), seen, source=Source.OCR)
    witnesses = Witnesses(Witness.AUTO, ScriptedEngine(lambda _: replace(READ, blocks=blocks)), 1)

    compared = await hear(witnesses).compared(page("\n".join([line] * 11)))

    assert compared.verdict is Verdict.INCOMPLETE


class Slow(ScriptedEngine):
    """Reads one page after another, each when it is let."""

    def __init__(self) -> None:
        super().__init__(lambda _: READ)
        self.let = asyncio.Semaphore(0)

    async def generate(self, request: EngineRequest) -> Generation:
        answer = await super().generate(request)
        await self.let.acquire()
        return answer


async def test_a_page_is_held_against_what_the_cpu_engine_reads_of_it() -> None:
    witnesses = Witnesses(Witness.AUTO, ScriptedEngine(lambda _: READ), 1)

    right = await hear(witnesses).compared(page())
    wrong = await hear(witnesses).compared(page("Sodium 146 mmol/l"))

    assert (right.verdict, wrong.verdict) == (Verdict.OK, Verdict.REVIEW)
    assert right.witness
    assert (right.witness.source, right.witness.values_agree) == (Source.OCR, right.witness.values)
    assert [(doubt.reason, doubt.text, doubt.other) for doubt in wrong.doubts] == [
        (DoubtReason.DISAGREES, "146", "140")
    ]


async def test_what_was_read_at_a_glance_is_read_again_where_it_does_not_confirm_the_page() -> None:
    [line] = SEEN[0].lines
    words = tuple(
        Word(text=text, box=line.box.model_copy(update={"left": left, "right": left + 50}), confidence=0.9)
        for left, text in ((0, "Sodium"), (60, "148"), (120, "mmol/l"))
    )
    misread = line.model_copy(update={"text": "Sodium 148 mmol/l", "words": words})
    pieces = tuple(Piece(corners=(word.box.left,) * 8, words=(word.box,)) for word in words)
    glance = replace(READ, blocks=(SEEN[0].model_copy(update={"lines": (misread,)}),), glanced=pieces)
    careful = Line(text="140", box=words[1].box, words=(words[1].model_copy(update={"text": "140"}),))
    second = replace(READ, blocks=(SEEN[0].model_copy(update={"lines": (careful,)}),))
    engine = ScriptedEngine(lambda request: second if request.again else glance)
    witnesses = Witnesses(Witness.AUTO, engine, 1)

    right = await hear(witnesses).compared(page())
    in_question = pieces[1].model_copy(update={"written": ("140",)})
    assert [request.again for request in engine.asked] == [(), (in_question,)]
    assert (right.verdict, right.doubts) == (Verdict.OK, ())
    as_glanced = await hear(witnesses).compared(page("Sodium 148 mmol/l"))
    assert [request.again for request in engine.asked[2:]] == [()]
    assert as_glanced.verdict is Verdict.OK
    wrong = await hear(witnesses).compared(page("Sodium 146 mmol/l"))
    assert [(doubt.text, doubt.other) for doubt in wrong.doubts] == [("146", "140")]


async def test_a_second_look_that_fails_leaves_the_first() -> None:
    piece = Piece(corners=(0.0,) * 8, words=(words_of(SEEN[0].lines[0])[1].box,))
    glance = replace(READ, glanced=(piece,))
    engine = ScriptedEngine(lambda request: EngineError("broken") if request.again else glance)
    wrong = await hear(Witnesses(Witness.AUTO, engine, 1)).compared(page("Sodium 146 mmol/l"))
    assert [(doubt.text, doubt.other) for doubt in wrong.doubts] == [("146", "140")]


@pytest.mark.parametrize(
    ("cores", "settings", "processes"),
    [
        (1, {}, 1),
        (4, {}, 2),
        (64, {}, 60),
        (64, {"decode_processes": 16}, 48),
        (64, {"witness_processes": 3}, 3),
    ],
)
def test_a_witness_has_the_cores_that_decoders_leave(
    monkeypatch: pytest.MonkeyPatch, cores: int, settings: dict[str, int], processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert witness_processes(WorkerSettings.model_validate(settings)) == processes


@pytest.mark.parametrize(
    ("fleet", "asked", "layer", "source"),
    [
        (Witness.AUTO, None, True, Source.LAYER),
        (Witness.AUTO, None, False, Source.OCR),
        (Witness.AUTO, "layer", False, None),
        (Witness.AUTO, "ocr", True, Source.OCR),
        (Witness.AUTO, "none", True, None),
        (Witness.NONE, None, True, None),
        (Witness.NONE, "auto", True, Source.LAYER),
    ],
)
async def test_the_layer_is_heard_first_and_a_task_may_choose(
    fleet: Witness, asked: str | None, layer: bool, source: Source | None
) -> None:
    witnesses = Witnesses(fleet, ScriptedEngine(lambda _: READ), 1)
    image = PageImage(pixels=PIXELS, witness=SEEN if layer else ())
    heard = await hear(witnesses, image, **({"witness": asked} if asked else {})).compared(page())
    assert (heard.witness.source if heard.witness else None) is source


async def test_the_cpu_engine_is_no_witness_of_itself() -> None:
    witnesses = Witnesses(Witness.AUTO, ScriptedEngine(lambda _: READ), 1)
    own = await hear(witnesses).compared(page(source=Source.OCR))
    assert (own.witness, own.verdict, own.doubts) == (None, Verdict.OK, ())


async def test_without_the_witness_that_was_due_no_value_is_ok() -> None:
    failing = Witnesses(Witness.AUTO, ScriptedEngine(lambda _: EngineError("broken")), 1)
    missing = Witnesses(Witness.NONE)
    pages = [await hear(failing).compared(page()), await hear(missing, witness="ocr").compared(page())]
    prose = await hear(missing, witness="ocr").compared(page("prose alone"))
    assert [one.verdict for one in (*pages, prose)] == [Verdict.REVIEW, Verdict.REVIEW, Verdict.OK]
    assert {doubt.reason for one in (*pages, prose) for doubt in one.doubts} == {DoubtReason.UNWITNESSED}
    assert [doubt.on_value for doubt in prose.doubts] == [False]


async def test_urgent_pages_are_read_first_and_before_them_what_the_model_has_read() -> None:
    engine = Slow()
    witnesses = Witnesses(Witness.AUTO, engine, 1)
    image = PageImage(pixels=PIXELS)
    first, bulk, late, urgent = (request(priority) for priority in (1, 2, 2, 0))
    hearings = [witnesses.begin(task(), one, image) for one in (first, bulk, late, urgent)]
    waiting = asyncio.create_task(hearings[2].compared(page()))
    for _ in range(4):
        await asyncio.sleep(0)
        engine.let.release()
    await waiting
    await asyncio.gather(*(one.compared(page()) for one in hearings))

    assert [one.id for one in engine.asked] == [one.id for one in (first, late, urgent, bulk)]


async def test_where_too_many_wait_the_others_keep_their_places_in_the_engine() -> None:
    engine, freed = Slow(), list[UUID]()
    witnesses = Witnesses(Witness.AUTO, engine, 1, freed.append)
    requests = [request() for _ in range(witnesses.spare + 2)]
    hearings = [witnesses.begin(task(), one, PageImage(pixels=PIXELS)) for one in requests]
    waiting = [asyncio.create_task(one.compared(page())) for one in hearings]
    await asyncio.sleep(0)

    assert freed == [one.part for one in requests[: witnesses.spare]]
    for _ in requests:
        engine.let.release()
    assert all([(await one).witness for one in waiting])
    assert len(engine.asked) == len(requests)


async def test_a_page_that_is_given_up_is_not_read() -> None:
    engine = Slow()
    witnesses = Witnesses(Witness.AUTO, engine, 1)
    first, second = hear(witnesses), hear(witnesses)
    second.close()
    engine.let.release()
    await first.compared(page())
    await asyncio.sleep(0)
    assert len(engine.asked) == 1
