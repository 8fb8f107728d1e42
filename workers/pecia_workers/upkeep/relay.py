"""The relay: publishes the parts that are due and that Redis has room for."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import tracing
from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane, Stage
from pecia_workers.ledger import publication
from pecia_workers.protocol.parts import NO_FLOW
from pecia_workers.queue.bus import Bus


def _trace_sent(messages: Sequence[PartMessage], began: int) -> None:
    """Record in each job's trace that parts of it were published."""
    ended = time.time_ns()
    for traceparent, number in Counter(message.traceparent for message in messages).items():
        if traceparent:
            about = tracing.messaging("send", number)
            kind = tracing.SpanKind.PRODUCER
            tracing.past("send", about, kind=kind, began=began, ended=ended, below=traceparent)


async def relay_due(database: AsyncEngine, bus: Bus, *, limit: int) -> int:
    """Publish up to `limit` parts of each list that are due; return how many. 0 while another relay is at it.

    Published first, marked after: whatever dies in between, a part is published twice, which is harmless, not lost.
    """
    spaces = [space for space in await bus.spaces(most=limit) if space.parts]
    async with database.begin() as connection:
        if not await publication.is_free(connection):
            return 0
        due = await publication.due_parts(connection, spaces)
        if not due and any(space.after != NO_FLOW for space in spaces):
            await bus.relay((), [(space, frozenset()) for space in spaces])  # begins anew
            spaces = [replace(space, after=NO_FLOW) for space in spaces]
            due = await publication.due_parts(connection, spaces)
        flows: defaultdict[tuple[Stage, Lane], set[UUID]] = defaultdict(set)
        for message, attempt in due:
            if attempt == 0:
                flows[message.stage, message.lane].add(message.flow)
        began, messages = time.time_ns(), [message for message, _ in due]
        refused = await bus.relay(messages, [(space, flows[space.stage, space.lane]) for space in spaces])
        _trace_sent(messages, began)
        unsent = {message.part for message in refused}
        sent = [(message.part, attempt) for message, attempt in due if message.part not in unsent]
        await publication.mark_published(connection, sent)
        return len(sent)
