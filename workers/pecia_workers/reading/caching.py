"""The result cache: a page is not read again that was read before, in the same way, or is being read."""

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
"""Settings on which the text depends. What they do to frames and pages shows in the pixels, and is left out."""


def identity_of(settings: WorkerSettings, engines: Sequence[Capabilities]) -> Mapping[str, Any] | None:
    """Return what two workers have in common whose readings are worth the same.

    None if a model could become another without a trace here: then nothing of it may be read later.
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
"""What of a request changes nothing in its answer; the images count by their pixels. Pages of which some is known are
read again each time."""
_DESCRIBING: Final = [one.name for one in fields(EngineRequest) if one.name not in _WITHOUT_EFFECT]


def key_of(
    reader: Mapping[str, Any],
    tenant: Mapping[str, Any],
    requests: Sequence[EngineRequest],
    keyring: Keyring,
    witness: str | None = None,
) -> bytes:
    """Return 32 bytes that two parts share only if all of it is the same. Takes milliseconds for each megapixel.

    `requests` are what the engine is asked at first, about the pictures of the first of them. Under an encryption key
    it is an HMAC: the table alone does not reveal whether a given document was ever read.
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
    """Return what jobs have in common that may share results: a value of the metadata key `by`.

    Without such a key, all metadata of the application: two of its tenants always differ in some. A tenant
    of the gateway shares with itself alone, whatever its metadata say.
    """
    gateway = {"gateway": part.tenant} if part.tenant is not None else {}
    if by and by in part.metadata:
        return {"by": by, "value": part.metadata[by], **gateway}
    return {"client": part.client, "metadata": part.metadata, **gateway}


Find = Callable[[bytes], Awaitable["Earlier | None"]]

_SHARE_OF_TIMEOUT = 0.25
"""Share of a part's time in which it waits for another part to be read."""


@dataclass(frozen=True, slots=True)
class Look(Generic[R]):
    """What came of looking."""

    key: bytes | None = None
    """What a good result is to be kept by; None: it is not to be kept."""
    found: R | None = None
    """The earlier result, with its provenance; where it lies in its document and its timings are the earlier one's."""

    def done(self, result: R, *, complete: bool = True) -> Done:
        """Return the outcome of a part that was read, to be kept for later ones if it is good.

        `complete`: it has all that the task asked for.
        """
        good = complete and result.verdict is Verdict.OK
        return Done(result, cache_key=self.key if good else None)


@dataclass(slots=True)
class _Flight:
    """A part that is being read."""

    rank: int
    over: asyncio.Event = field(default_factory=asyncio.Event)


class ResultCache:
    """The fleet's earlier results, as the parts of one worker see them. For one loop.

    Of equal parts that run here at the same time one is read; the others wait for it, but never for one of a lower
    lane.
    """

    def __init__(
        self, find: Find | None, settings: WorkerSettings, engines: Sequence[Capabilities] = ()
    ) -> None:
        """`engines`: all that may have a hand in a result, started."""
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
        """Return what the engine's own caches are parted by: the same for the parts that may share results."""
        tenant = json.dumps(tenant_of(part, self._by), sort_keys=True)
        return hashlib.sha256(tenant.encode()).hexdigest()

    async def look(
        self, part: ClaimedPart, requests: Sequence[EngineRequest], kind: type[R], witness: str | None = None
    ) -> Look[R]:
        """Return the earlier result of these requests, held against the same witness, and what to keep a new one by.

        Nothing is shared of a task that says so, or of words that are picked by chance.
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
        """Let those go on that wait for this part: its result is committed, or there is none."""
        key = self._keys.pop(part, None)
        if key is not None:
            self._flights.pop(key).over.set()
