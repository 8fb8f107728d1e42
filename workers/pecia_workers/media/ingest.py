"""The ingest stage: judge a payload and cut it into priced parts."""

from __future__ import annotations

from pecia_schemas import FailureCode, ReadDocument, Stage
from pecia_schemas.cost import page_cost
from pecia_workers.ledger import ClaimedPart, Cut, NewPart
from pecia_workers.media.decoder import Decoder
from pecia_workers.media.errors import MediaError
from pecia_workers.media.pages import PageInfo
from pecia_workers.payloads import Spool


class Ingest:
    """Cuts payloads for the stage that will work on them."""

    def __init__(self, spool: Spool, decoder: Decoder) -> None:
        self._spool = spool
        self._decoder = decoder

    async def __call__(self, part: ClaimedPart) -> Cut:
        """Return the parts of the claimed payload.

        Raises `MediaError`, `PayloadMissingError`, `PayloadCorruptError`.
        """
        task = part.task
        if not isinstance(task, ReadDocument):
            raise MediaError(FailureCode.NO_ENGINE, "None of this fleet's engines captions videos.")
        async with self._spool.open(part.payload) as path:
            pages = await self._decoder.inspect(path)
        return Cut(Stage.READ, [_price(page, task) for page in pages])


def _price(page: PageInfo, task: ReadDocument) -> NewPart:
    cost = page_cost(page.width, page.height, task.document_type)
    return NewPart(ordinal=page.index, cost=cost, width=page.width, height=page.height)
