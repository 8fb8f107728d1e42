"""A producer that goes on during the faults: its documents, the same for the same seed, and what was accepted."""

import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self, TypeVar
from uuid import UUID

from PIL import Image, ImageDraw, ImageFont

from pecia import Client, DocumentType, Lane, PeciaError, ReadDocument

_PAGE = (600, 120)  # pixels
_MOST_PAGES = 24


class Shape(StrEnum):
    """What a document is."""

    PICTURE = "picture"
    PDF = "pdf"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    number: int
    shape: Shape
    pages: int
    lane: Lane
    document_type: DocumentType
    cancelled: bool
    """Whether its producer changes their mind as soon as it is accepted."""

    def draw(self) -> bytes:
        """Return the document: no page of it looks like another one's."""
        if self.shape is Shape.PDF:
            return _pdf([_page(f"document {self.number} page {page}") for page in range(self.pages)])
        picture = _png(_page(f"document {self.number}"))
        return picture if self.shape is Shape.PICTURE else picture[: len(picture) // 2]


def orders(seed: int) -> Iterator[Order]:
    """Yield what is handed over, in that order: mostly small, some long, a few damaged or cancelled."""
    chance = random.Random(f"orders {seed}")  # noqa: S311  a workload, no secret
    number = 0
    while True:
        shape = chance.choices(list(Shape), weights=(70, 27, 3))[0]
        yield Order(
            number=number,
            shape=shape,
            pages=chance.randint(2, _MOST_PAGES) if shape is Shape.PDF else 1,
            lane=chance.choices(list(Lane), weights=(20, 40, 40))[0],
            document_type=chance.choices(
                (DocumentType.PRESCRIPTION, DocumentType.LAB_RESULT, DocumentType.DIAGNOSIS),
                weights=(60, 30, 10),
            )[0],
            cancelled=chance.random() < 0.03,
        )
        number += 1


def _page(words: str) -> Image.Image:
    image = Image.new("L", _PAGE, "white")
    ImageDraw.Draw(image).text((30, 40), words, fill="black", font=ImageFont.load_default(28))
    return image


def _png(page: Image.Image) -> bytes:
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    return buffer.getvalue()


def _pdf(pages: list[Image.Image]) -> bytes:
    buffer = io.BytesIO()
    pages[0].save(buffer, "PDF", save_all=True, append_images=pages[1:])
    return buffer.getvalue()


T = TypeVar("T")

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An order that the fleet has taken."""

    order: Order
    job_id: UUID
    at: datetime


class Producer:
    """Hands over one order after the other on a thread of its own, whenever there is room, until it is stopped.

    Each order has a key of its own, so that a submit whose answer got lost is not taken for another one.
    """

    def __init__(
        self, client: Client, orders: Iterator[Order], *, webhook: str, has_room: Callable[[], bool]
    ) -> None:
        self.accepted: list[Accepted] = []
        self.errors = 0
        """Submits that raised."""
        self.failure: Exception | None = None
        """What ended the thread early: no error that a producer expects."""
        self._client = client
        self._orders = orders
        self._webhook = webhook
        self._has_room = has_room
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    @property
    def busy(self) -> bool:
        """Whether an order is in flight, or will be."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Hand over nothing new; the order under way is finished, for its job may be there already."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            for order in self._orders:
                while not self._has_room() and not self._stopping.is_set():
                    time.sleep(_PAUSE_S)
                if self._stopping.is_set():
                    return
                self._hand_over(order)
        except Exception as failure:  # noqa: BLE001  the auditor reports it
            self.failure = failure

    def _hand_over(self, order: Order) -> None:
        task = ReadDocument(order.draw(), document_type=order.document_type)

        def submit() -> UUID:
            job = self._client.submit(
                task, priority=order.lane, webhook=self._webhook, idempotency_key=f"order-{order.number}"
            )
            return job.id

        job_id = self._until_accepted(submit)
        self.accepted.append(Accepted(order=order, job_id=job_id, at=datetime.now(UTC)))
        if order.cancelled:
            self._until_accepted(lambda: self._client.job(job_id).cancel(reason="changed their mind"))

    def _until_accepted(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except PeciaError as error:
                if not error.retryable:
                    raise
                self.errors += 1
                time.sleep(_PAUSE_S)
