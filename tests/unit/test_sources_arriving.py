"""A document on its way in is written in blocks, in whatever pieces it comes."""

import io
from typing import Any

from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.pages import Limits
from pecia_workers.sources import Arriving


class Counting(io.BytesIO):
    writes = 0

    def write(self, content: Any, /) -> int:
        self.writes += 1
        return super().write(content)


async def test_a_server_that_sends_byte_by_byte_costs_no_write_for_each() -> None:
    file, document = Counting(), bytes(range(256)) * 1_000
    arriving = Arriving(file, Limits.of(WorkerSettings()))
    for position in range(len(document)):
        await arriving.write(document[position : position + 1])
    await arriving.arrived()
    assert file.read() == document
    assert file.writes == 4
