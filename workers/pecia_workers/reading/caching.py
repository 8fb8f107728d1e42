"""The result cache: equal pages with equal settings are read once, also when they come at the same time."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any, Final, Generic, Self, TypeVar
from uuid import UUID

from pydantic import ValidationError

from pecia_schemas.encryption import Keyring
from pecia_schemas.results import CachedFrom, Page, Segment, Summary, TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.frames import digest
from pecia_workers.protocol.base import Capabilities, EngineRequest
from pecia_workers.protocol.parts import ClaimedPart, Done, Earlier

R = TypeVar("R", Page, Segment, Summary)

_DECISIVE: Final = (
    "card",
    "engine_options",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_output_tokens",
    "max_readings",
    "quantization",
    "speculative_config",
    "video_pruning_rate",
)
"""Settings on which the text depends, without those whose effect shows in the pixels of frames and pages."""


def identity_of(settings: WorkerSettings, engines: Sequence[Capabilities]) -> Mapping[str, Any] | None:
    """Return the identity of a worker's readings: equal for workers whose results are interchangeable.

    None if the model could change unnoticed: then its results must not be reused.
    """
    if not settings.cache_revision and any(engine.revision is None for engine in engines):
        return None
    return {
        "pecia": version("pecia"),
        "engines": [(engine.name, engine.model, engine.revision) for engine in engines],
        "revision": settings.cache_revision,
        "settings": {name: getattr(settings, name) for name in _DECISIVE},
    }


_WITHOUT_EFFECT: Final = {
    *("id", "part", "images", "tenant", "priority", "expected_output_tokens", "prepared"),
    *("again", "known", "unread", "until"),
}
"""Fields of a request that do not affect its answer; images are compared by their pixels. Pages with known text are
read again each time."""
_DESCRIBING: Final = [one.name for one in fields(EngineRequest) if one.name not in _WITHOUT_EFFECT]


def key_of(
    reader: Mapping[str, Any],
    tenant: Mapping[str, Any],
    requests: Sequence[EngineRequest],
    keyring: Keyring,
    witness: str | None = None,
) -> bytes:
    """Return the 32-byte cache key of all that decides the result. Takes milliseconds for each megapixel.

    `requests`: the part's first requests, all about the pictures of the first. With an encryption key the result is an
    HMAC, so that the table alone does not reveal whether a given document was read.
    """
    described = ({} if witness is None else {"witness": witness}) | {
        "reader": reader,
        "tenant": tenant,
        "requests": [{name: getattr(request, name) for name in _DESCRIBING} for request in requests],
        "pictures": [(image.shape, digest(image)) for image in requests[0].images],
    }
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"), default=asdict).encode()
    if keyring.current is None:
        return hashlib.sha256(canonical).digest()
    return bytes.fromhex(keyring.fingerprint(canonical, keyring.current, purpose="result"))


def tenant_of(part: ClaimedPart, by: str) -> Mapping[str, Any]:
    """Return the tenant within which jobs share results: the value of the metadata key `by`.

    Without such a key it is all of the job's metadata, since tenants of one application always differ in some. Tenants
    of the gateway never share with others, whatever their metadata.
    """
    gateway = {"gateway": part.tenant} if part.tenant is not None else {}
    if by and by in part.metadata:
        return {"by": by, "value": part.metadata[by], **gateway}
    return {"client": part.client, "metadata": part.metadata, **gateway}


Find = Callable[[bytes], Awaitable["Earlier | None"]]

_SHARE_OF_TIMEOUT = 0.25
"""Share of a part's timeout for which it waits for the reading of an equal part."""


@dataclass(frozen=True, slots=True)
class Look(Generic[R]):
    """A cached result, or the key under which to store a new one."""

    key: bytes | None = None
    """Key for a new result; None: it must not be stored."""
    found: R | None = None
    """The earlier result, with its provenance; its page number and timings are those of the earlier part."""

    def done(self, result: R, *, complete: bool = True) -> Done:
        """Return the outcome of a part that was read, with a cache key if its result may be reused.

        `complete`: the result has all that the task asked for.
        """
        good = complete and result.verdict is Verdict.OK
        return Done(result, cache_key=self.key if good else None)


@dataclass(slots=True)
class _Flight:
    """A part that is being read."""

    rank: int
    over: asyncio.Event = field(default_factory=asyncio.Event)


class ResultCache:
    """The fleet's cached results, for the parts of one worker. For one loop.

    Of equal parts in flight on this worker one is read; the others wait for it, but never for one of a lower lane.
    """

    def __init__(
        self, find: Find | None, settings: WorkerSettings, engines: Sequence[Capabilities] = ()
    ) -> None:
        """`engines`: all started engines that may contribute to a result."""
        self._find = find if settings.cache else None
        self._reader = identity_of(settings, engines)
        self._by = settings.cache_by
        self._keyring = settings.keyring
        self._timeout_s = _SHARE_OF_TIMEOUT * settings.part_timeout.total_seconds()
        self._flights: dict[bytes, _Flight] = {}
        self._keys: dict[UUID, bytes] = {}

    @classmethod
    def off(cls) -> Self:
        """Return a cache without entries."""
        return cls(None, WorkerSettings())

    def tenant(self, part: ClaimedPart) -> str:
        """Return the tenant that separates the engine's own caches: equal for parts that may share results."""
        tenant = json.dumps(tenant_of(part, self._by), sort_keys=True)
        return hashlib.sha256(tenant.encode()).hexdigest()

    async def look(
        self, part: ClaimedPart, requests: Sequence[EngineRequest], kind: type[R], witness: str | None = None
    ) -> Look[R]:
        """Return the earlier result of these requests under the same witness, or the key for a new one.

        Tasks that opt out, and requests that sample at random, share nothing.
        """
        if (
            self._find is None
            or self._reader is None
            or not part.task.cache
            or any(request.sampling.temperature and request.sampling.seed is None for request in requests)
        ):
            return Look()
        tenant = tenant_of(part, self._by)
        key = await asyncio.to_thread(key_of, self._reader, tenant, requests, self._keyring, witness)
        earlier = await self._find(key)
        flight = self._flights.get(key)
        if earlier is None and flight and flight.rank <= part.lane.rank:
            with suppress(TimeoutError):
                await asyncio.wait_for(flight.over.wait(), self._timeout_s)
            earlier = await self._find(key)
        found: R | None = None
        if earlier:
            try:
                result = kind.model_validate(earlier.content)
            except ValidationError:
                pass  # another version wrote it in another form
            else:
                source = CachedFrom(part=earlier.part, read_at=earlier.read_at, usage=result.usage)
                found = result.model_copy(update={"cached_from": source, "usage": TokenUsage()})
        if found is None and key not in self._flights:
            self._flights[key] = _Flight(part.lane.rank)
            self._keys[part.id] = key
        return Look(key, found)

    def ended(self, part: UUID) -> None:
        """Release the parts that wait for this one: its result is committed, or it has none."""
        key = self._keys.pop(part, None)
        if key is not None:
            self._flights.pop(key).over.set()
