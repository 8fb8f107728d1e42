"""A worker loop's use of Redis, and claims straight from Postgres while Redis is unavailable.

Announces jobs, listens for cancellations, publishes parts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import cast
from uuid import UUID

import structlog
from redis.exceptions import RedisError

from pecia_schemas import messages
from pecia_schemas.connecting import name_of
from pecia_schemas.messages import PartMessage
from pecia_schemas.redis_connections import SOCKET_TIMEOUT_S, connect_async
from pecia_schemas.states import JobState
from pecia_workers.protocol.parts import NO_FLOW, ClaimedPart, ListSpace
from pecia_workers.queue.lists import QUEUES, RELAYED

log = structlog.get_logger(__name__)

_REDIS_EVERY_S = 1.0
_RETRY_S = 1.0
_REST_S = 5.0
"""How long nothing is sent to a failed Redis, so that commits do not wait for it repeatedly."""
_PUBLISH = "for i = 1, #ARGV, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end"
"""One call for a group: a reply for each job cost the worker more than the rest of the announcement."""

_WITH_FAILURES = frozenset({JobState.FAILED, JobState.PARTIAL})


class Bus:
    """Announcements on a best-effort basis: listeners that miss one read Postgres. Holds ids, states and costs only."""

    def __init__(self, redis_url: str, *, window: int = messages.WINDOW) -> None:
        self._window, self._reserve = window, messages.reserve_of(window)
        self._redis = connect_async(redis_url)
        self._rests_until = 0.0

    async def announce(self, jobs: Mapping[UUID, JobState]) -> None:
        """Announce each job's state to its waiters. Never raises if Redis is unavailable.

        Workers are notified of failed jobs too, since parts of a failed document may still run there.
        """
        if not jobs or monotonic() < self._rests_until:
            return
        words = [word for job_id, state in jobs.items() for word in (messages.job_channel(job_id), state)]
        given_up = [str(job_id) for job_id, state in jobs.items() if state in _WITH_FAILURES]
        words += [word for job_id in given_up for word in (messages.CANCEL_CHANNEL, job_id)]
        try:
            await cast("Awaitable[None]", self._redis.eval(_PUBLISH, 0, *words))
        except (RedisError, OSError):
            self._rests_until = monotonic() + _REST_S

    async def spaces(self, *, most: int) -> list[ListSpace]:
        """Return how many more messages, up to `most`, each list may take from the relay. Raises `RedisError`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for queue in QUEUES:
                pipe.llen(queue)
                pipe.hmget(messages.standing_name(queue), [messages.BEHIND_TURNS, messages.IN_POSTGRES])
                pipe.hget(RELAYED, queue)
            replies = await pipe.execute()
        spaces = []
        for (stage, lane), length, (behind, left), after in zip(
            QUEUES.values(), replies[::3], replies[1::3], replies[2::3], strict=True
        ):
            free = self._window - length - int(behind or 0)
            parts = free if free > 0 else max(0, free + self._reserve)
            flow = NO_FLOW
            with suppress(ValueError):  # written by hand
                flow = UUID((after or b"").decode("ascii", "replace"))
            spaces.append(
                ListSpace(
                    stage=stage,
                    lane=lane,
                    parts=min(parts, most),
                    turn=most if free > 0 else messages.TURN,
                    after=flow,
                    is_waited_for=left is not None,
                )
            )
        return spaces

    async def relay(
        self, parts: Sequence[PartMessage], served: Iterable[tuple[ListSpace, AbstractSet[UUID]]]
    ) -> list[PartMessage]:
        """Queue the parts; return those for which their list had no capacity.

        `served`: the capacity of each list and the flows found for it; the relay continues behind the last flow.
        Raises `redis.RedisError`.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            packed = messages.enqueue(pipe, parts, window=self._window, reserve=self._reserve)
            for space, flows in served:
                queue = messages.queue_name(space.stage, space.lane)
                if len(flows) >= space.parts:
                    pipe.hset(RELAYED, queue, str(max(flows)))
                elif space.after != NO_FLOW:
                    pipe.hdel(RELAYED, queue)
                elif space.is_waited_for and not flows:
                    pipe.hdel(messages.standing_name(queue), messages.IN_POSTGRES)
            replies = await pipe.execute() if len(pipe) else []
        return messages.refused(packed, replies[: len(packed)])

    async def hear_cancelled(self, cancelled: Callable[[UUID], None]) -> None:
        """Call `cancelled` with the id of every cancelled job, until the task itself is cancelled."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(messages.CANCEL_CHANNEL)
                    while True:
                        message = await pubsub.get_message(timeout=SOCKET_TIMEOUT_S - 1)
                        if message is None:
                            await pubsub.ping()  # a half-open connection fails here
                        elif message["type"] == "message":
                            with suppress(ValueError):
                                cancelled(UUID(message["data"].decode()))
            except Exception as error:  # noqa: BLE001  a deaf worker would finish cancelled jobs
                log.debug("cancellations_unheard", error=type(error).__name__)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


@dataclass(eq=False, kw_only=True)
class DirectClaims:
    """Checks every second whether parts arrive through Redis; if not, claims them from Postgres and runs them."""

    redis_serves: Callable[[], bool]
    """Whether who claims through Redis reaches it and gets all that is due."""
    claim: Callable[[int], Awaitable[Sequence[ClaimedPart]]]
    """Claims up to so many parts."""
    claimed: set[UUID]
    """Gets their ids."""
    free: Callable[[], int]
    """Returns how many more may run."""
    run: Callable[[ClaimedPart], Awaitable[None]]
    """Runs a part to its end without raising."""
    _claiming: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _running: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __len__(self) -> int:
        return len(self._running)

    async def keep_claiming(self) -> None:
        """Check forever, and run as many parts as fit while Redis is unavailable."""
        away = False
        while True:
            await asyncio.sleep(_REDIS_EVERY_S)
            was_away, away = away, not self.redis_serves()
            if away != was_away:
                log.warning("claiming_directly" if away else "claiming_through_redis", running=len(self))
            try:
                while away and (slots := self.free()) > 0:
                    async with self._claiming:
                        parts = await self.claim(slots)
                        self.claimed.update(part.id for part in parts)
                    if not parts:
                        break
                    for part in parts:
                        task = asyncio.ensure_future(self.run(part))
                        self._running.add(task)
                        task.add_done_callback(self._running.discard)
                    await asyncio.sleep(0)  # they begin, and so count as running
            except Exception as error:  # noqa: BLE001  the next look may succeed, and nothing else claims now
                log.warning("direct_claim_failed", error=name_of(error))

    async def idle(self) -> None:
        """Wait until no claim is in flight: a message's claim at the same time could take the same part."""
        if self._claiming.locked():
            async with self._claiming:
                pass

    async def stop(self) -> None:
        """Cancel the parts that run, which `run` requeues. `keep_claiming` must have ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
