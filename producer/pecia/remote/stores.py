"""What a client writes and reads of jobs behind a gateway: `pecia.store` and its like without SQL."""

import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import chain
from operator import itemgetter
from typing import IO, Any, Final
from urllib.parse import quote
from uuid import UUID

import httpx2
from pydantic import TypeAdapter

from pecia import bulk, errors, records, sources
from pecia.bulk import Outcome
from pecia.formats import Format
from pecia.handles import Accepted, JobView
from pecia.remote.calls import Caller, error_of
from pecia.store import D_co, Statements, transaction, unrepeatable
from pecia.submission import Item, Options
from pecia.waiting import batches
from pecia_schemas import storable
from pecia_schemas.events import JobEvent, Webhook
from pecia_schemas.media import Ordinals, PayloadRef, UrlRef
from pecia_schemas.messages import PartMessage
from pecia_schemas.results import Verdict
from pecia_schemas.running import Lack
from pecia_schemas.states import DeliveryState

_AT_ONCE: Final = 500
_IDS: Final = 150
"""In one URL: a proxy takes some 8,000 characters."""
"""Jobs or parts in one answer."""
_FILES: Final = 100
_BYTES: Final = 32 * 1024**2
"""Where a request of many documents ends."""
_DRAWING: Final = httpx2.Timeout(1800, connect=10)
"""Of results with pictures: they may have hundreds of pages."""
_VIEW: Final = TypeAdapter(JobView)
_OUTCOMES: Final = TypeAdapter(list[records.PartOutcome])
_PAGES: Final = TypeAdapter(list[records.FoundPage])
_LACKS: Final = TypeAdapter(list[Lack])
_EVENTS: Final = TypeAdapter(list[JobEvent])
_MOMENT: Final = TypeAdapter(datetime | timedelta | None)


class RemoteStore(Statements[D_co]):
    """The jobs of a key's tenant, as a client sees and writes them."""

    @transaction
    def submit(self, http: Caller, items: Sequence[Item], options: Options) -> list[Outcome]:
        """Submit tasks, some in a request; return what became of each. Raises `QueueFullError`."""
        found: list[Outcome] = []
        batch: list[tuple[Item, IO[bytes] | errors.SubmitError | None]] = []
        size = 0
        try:
            with ExitStack() as stack:  # of the documents of a batch
                for item in items:
                    document = _opened(stack, item, options)
                    batch.append((item, document))
                    if document is not None and not isinstance(document, errors.SubmitError):
                        size += document.seek(0, os.SEEK_END)
                    if size >= _BYTES or len(batch) == _FILES:
                        found += _submitted(http, batch, options)
                        stack.close()
                        batch, size = [], 0
                found += _submitted(http, batch, options)
        except (errors.UnavailableError, errors.QueueFullError) as error:
            error.answered = found
            raise
        return sorted(found, key=itemgetter(0))

    @transaction
    def views(self, http: Caller, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return what is known about each of the jobs that exist."""
        asked = [[str(one) for one in some] for some in batches(list(job_ids), _IDS)]
        found = [made for ids in asked for made in http.get("/jobs", id=ids)["jobs"]]
        return {view.id: view for view in map(_VIEW.validate_python, found)}

    @transaction
    def page(
        self, http: Caller, listing: records.Listing, *, before: UUID | None, size: int
    ) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        found: list[JobView] = []
        while len(found) < size:
            most = min(size - len(found), _AT_ONCE)
            prefix, older = listing.prefix or None, before and str(before)
            answer = _listed(http, "/jobs", listing, prefix=prefix, before=older, limit=most)
            found += [_VIEW.validate_python(one) for one in answer["jobs"]]
            if (before := answer["next"]) is None:
                break
        return found

    @transaction
    def open_batch(self, http: Caller, name: str | None) -> records.Batch:
        """Return a new batch, or the one that has this name already."""
        return records.Batch.model_validate(http.ask("POST", "/batches", json={"name": name}))

    @transaction
    def batch(self, http: Caller, reference: str) -> records.Batch:
        """Return the batch of this name or id, or the only one whose id begins so. Raises `BatchNotFoundError`."""
        if not 0 < len(reference) <= storable.BATCH or reference in {
            ".",
            "..",
        }:  # no batch is called so, and no path reaches it
            raise errors.BatchNotFoundError(reference)
        with _of_batch(reference):
            return records.Batch.model_validate(http.get(f"/batches/{quote(reference, safe='')}"))

    @transaction
    def counts(self, http: Caller, listing: records.Listing) -> records.Counts:
        """Return how far the jobs are."""
        return records.Counts.model_validate(_listed(http, "/counts", listing))

    @transaction
    def found_pages(
        self,
        http: Caller,
        verdicts: Collection[Verdict],
        listing: records.Listing,
        *,
        after: records.FoundPage | None,
        size: int,
    ) -> list[records.FoundPage]:
        """Return up to `size` pages that were read with one of these verdicts, the newest job first, by number."""
        follows = after and f"{after.job_id}:{after.number}"
        most = min(size, _AT_ONCE)
        answer = _listed(http, "/pages", listing, verdict=list(verdicts), after=follows, limit=most)
        return _PAGES.validate_python(answer["pages"])

    @transaction
    def lacking(self, http: Caller, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts need and no worker on duty can do."""
        return [
            lack for one in job_ids for lack in _LACKS.validate_python(http.get(f"/jobs/{one}/lacks", one))
        ]

    @transaction
    def outcomes(
        self,
        http: Caller,
        job_id: UUID,
        *,
        skip: Ordinals | None = None,
        limit: int | None = None,
        read_as: records.AuditAction | None = None,
        revision: int | None = None,
    ) -> list[records.PartOutcome]:
        """Return the parts that have ended, in order. The gateway notes who has read them."""
        found: list[records.PartOutcome] = []
        seen = skip.copy() if skip else Ordinals()
        while limit is None or len(found) < limit:
            whole = read_as is records.AuditAction.RESULT
            answer = http.get(
                f"/jobs/{job_id}/pages",
                job_id,
                skip=seen.written(storable.PAGES) or None,
                whole=whole,
                revision=revision,
            )
            fresh = [one for one in _OUTCOMES.validate_python(answer["parts"]) if one.ordinal not in seen]
            found += fresh
            for one in fresh:
                seen.add(one.ordinal)
            if not answer["more"] or not fresh:
                break
        return found[:limit]

    @transaction
    def drawn(self, http: Caller, job_id: UUID, form: Format, *, quality: int, revision: int | None) -> bytes:
        """Return a result with the pages' pictures, as the gateway draws it."""
        asked = {"format": form.value, "quality": quality, "revision": revision}
        query = {name: value for name, value in asked.items() if value is not None}
        media_type = "application/pdf" if form is Format.PDF else "text/html"
        path, headers = f"/jobs/{job_id}/result", {"Accept": media_type}
        content: bytes = http.ask("GET", path, job_id=job_id, params=query, headers=headers, timeout=_DRAWING)
        return content

    @transaction
    def first_unfinished(self, http: Caller, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change; None if there is none. 0 until the document is cut."""
        answer = http.get(f"/jobs/{job_id}/pages", job_id, limit=0)
        return None if answer["first_open"] is None else int(answer["first_open"])

    @transaction
    def events(self, http: Caller, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those to be skipped."""
        events = _EVENTS.validate_python(http.get(f"/jobs/{job_id}/events", job_id, after=after))
        return [event for event in events if event.sequence not in skip]


class RemoteTransitions(Statements[D_co]):
    """What a client may do to jobs behind a gateway, which hands their parts to the fleet itself."""

    @unrepeatable
    def cancel(self, http: Caller, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        """Cancel those of the jobs that are not over, and return them."""
        why = {"reason": reason}
        return [
            one
            for one in job_ids
            if http.ask("POST", f"/jobs/{one}/cancel", job_id=one, json=why)["cancelled"]
        ]

    @unrepeatable
    def retry(self, http: Caller, job_id: UUID, parts: Collection[UUID] | None = None) -> list[PartMessage]:
        """Run the failed and cancelled parts of a job that is over again, or those of them."""
        chosen = {"parts": None if parts is None else [str(part) for part in parts]}
        http.ask("POST", f"/jobs/{job_id}/retry", job_id=job_id, json=chosen)
        return []


class RemoteAccounts(Statements[D_co]):
    """The accounts of a tenant's jobs."""

    @transaction
    def of_job(self, http: Caller, job_id: UUID) -> records.UsageFigures:
        """Return the sums over one job's parts."""
        return records.UsageFigures.model_validate(http.get(f"/jobs/{job_id}/usage", job_id))

    @transaction
    def since(self, http: Caller, moment: datetime | None, by: str | None) -> Any:  # noqa: ARG002  that of the accounts
        """Raise what says that it is not to be had."""
        raise not_offered("the usage of a whole fleet")


class RemoteEndpoints(Statements[D_co]):
    """The endpoints of a tenant."""

    @unrepeatable
    def add(self, http: Caller, options: Webhook) -> records.Endpoint:
        """Register an endpoint; return it with its secret."""
        return records.Endpoint.model_validate(
            http.ask("POST", "/webhooks", json=options.model_dump(mode="json"))
        )

    @transaction
    def all(self, http: Caller) -> list[records.Endpoint]:
        """Return all endpoints, the oldest first."""
        return [records.Endpoint.model_validate(one) for one in http.get("/webhooks")]

    @transaction
    def remove(self, http: Caller, endpoint: UUID) -> None:
        """Forget an endpoint and its deliveries, done and due."""
        http.ask("DELETE", f"/webhooks/{endpoint}")

    @unrepeatable
    def rotate(self, http: Caller, endpoint: UUID, overlap: timedelta) -> records.Endpoint:
        """Give an endpoint a fresh secret, beside which the former one signs for so long."""
        body = {"overlap": overlap.total_seconds()}
        return records.Endpoint.model_validate(http.ask("POST", f"/webhooks/{endpoint}/rotate", json=body))

    @unrepeatable
    def test(self, http: Caller, endpoint: UUID) -> UUID:
        """Promise a test, to go before all else; return its delivery."""
        return UUID(http.ask("POST", f"/webhooks/{endpoint}/test")["id"])


class RemoteDeliveries(Statements[D_co]):
    """The deliveries of a tenant's webhooks, done and due."""

    @transaction
    def latest(
        self,
        http: Caller,
        *,
        job_id: UUID | None,
        endpoint_id: UUID | None,
        state: DeliveryState | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[records.Delivery]:
        """Return those that fit with their attempts, newest first: without a limit the latest 500."""
        if limit == 0:
            return []
        if limit is not None and limit > _AT_ONCE:
            raise errors.InvalidOptionError(
                f"A gateway shows {_AT_ONCE} deliveries at most: ask for less, of one job, endpoint or state."
            )
        options: dict[str, Any] = {
            "job_id": job_id and str(job_id),
            "webhook_id": endpoint_id and str(endpoint_id),
            "state": state,
        }
        since_text = since and since.isoformat()
        found = http.get("/deliveries", **options, since=since_text, limit=limit or _AT_ONCE)
        return [records.Delivery.model_validate(one) for one in found]

    @transaction
    def one(self, http: Caller, delivery_id: UUID) -> records.Delivery:
        """Return a delivery with its attempts."""
        return records.Delivery.model_validate(http.get(f"/deliveries/{delivery_id}"))

    @unrepeatable
    def replay(self, http: Caller, delivery_ids: Collection[UUID]) -> None:
        """Have deliveries that are over tried again."""
        for one in delivery_ids:
            http.ask("POST", f"/deliveries/{one}/replay")


class RemotePurging(Statements[D_co]):
    """What a client may erase behind a gateway: jobs that it names."""

    @transaction
    def fitting(self, http: Caller, selection: records.Selection) -> list[UUID]:  # noqa: ARG002  that of a purge
        """Return the jobs that are named."""
        if selection.job_ids is None or selection.before is not None or selection.metadata:
            raise not_offered("erasing by time or metadata")
        return list(selection.job_ids)

    @transaction
    def look(self, http: Caller, job_ids: Sequence[UUID]) -> list[records.Erasure]:  # noqa: ARG002  as above
        """Raise what says that it is not to be had."""
        raise not_offered("a look at what would be erased")

    @transaction
    def erase(self, http: Caller, job_ids: Sequence[UUID], reason: str | None) -> list[records.Erasure]:
        """Erase what these jobs hold; return what that was."""
        why = {"reason": reason}
        found = [http.ask("DELETE", f"/jobs/{one}", job_id=one, json=why) for one in job_ids]
        return [records.Erasure.model_validate(one) for one in found if one is not None]


class Missing:
    """What a gateway does not offer: the first call says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise not_offered(self._what)


def not_offered(what: str) -> errors.AccessError:
    """Return what is raised for what only operators have."""
    return errors.AccessError(
        f"A gateway does not offer {what}: ask where the fleet's stores are.", "not_offered"
    )


@contextmanager
def _of_batch(reference: str) -> Iterator[None]:
    """Raise `BatchNotFoundError` with the caller's own reference: the gateway's problem has only a sentence."""
    try:
        yield
    except errors.BatchNotFoundError:
        raise errors.BatchNotFoundError(reference) from None


def _listed(http: Caller, path: str, listing: records.Listing, **more: Any) -> Any:
    """Return what a gateway answers about the jobs that a listing means."""
    metadata = listing.metadata or {}
    if any("=" in key for key in metadata):
        raise errors.InvalidOptionError(
            "A gateway finds no jobs by a metadata key with an equals sign in it."
        )
    which = {
        "state": list(listing.states),
        "verdict": list(listing.verdicts),
        "kind": listing.kind,
        "batch": listing.batch and str(listing.batch),
        "part": listing.part and str(listing.part),
        "metadata": [f"{key}={value}" for key, value in metadata.items()],
        "since": listing.since and listing.since.isoformat(),
    }
    with _of_batch(str(listing.batch)):
        return http.get(path, **which | more)


def _opened(stack: ExitStack, item: Item, options: Options) -> IO[bytes] | errors.SubmitError | None:
    """Return a task's document from its start; None if the fleet fetches it."""
    try:
        bulk.check(item, options)
        source = item.own.task.source
        if isinstance(source, PayloadRef):
            raise errors.InvalidSourceError(
                "Through a gateway a document is sent, not named: submit the file itself."
            )
        if isinstance(source, UrlRef):
            return None
        file = stack.enter_context(sources.opened(source))
        if not isinstance(file.read(0), bytes):
            return sources.unreadable(TypeError())
        return io.BytesIO(file.read()) if file.tell() else file
    except errors.SubmitError as error:
        return error
    except (OSError, TypeError) as error:
        return sources.unreadable(error)


def _submitted(
    http: Caller, batch: Sequence[tuple[Item, IO[bytes] | errors.SubmitError | None]], options: Options
) -> Iterator[Outcome]:
    good = [(item, document) for item, document in batch if not isinstance(document, errors.SubmitError)]
    yield from (
        (item.number, document) for item, document in batch if isinstance(document, errors.SubmitError)
    )
    if not good:
        return
    request = json.dumps(_request([item for item, _ in good], options))
    files = [("file", (str(item.number), document)) for item, document in good if document is not None]
    body: dict[str, Any] = {"files": files, "data": {"request": request}}
    if not files:
        body = {"content": request, "headers": {"Content-Type": "application/json"}}
    try:
        with _of_batch(str(options.batch)):
            answer = http.ask("POST", "/jobs", **body)
    except errors.AccessError as error:
        if error.retry_after is None:
            raise
        full = errors.QueueFullError(options.lane, 0, retry_after=error.retry_after)
        full.args = error.args
        raise full from None
    except errors.SubmitError as error:
        if len(good) > 1:  # all of them are refused: each has its own reason
            yield from chain.from_iterable(_submitted(http, [one], options) for one in batch if one in good)
        else:
            yield good[0][0].number, error
        return
    for made in answer["jobs"]:
        view = _VIEW.validate_python(made)
        yield good[made["number"]][0].number, Accepted(view=view, created=made["created"], flow=view.id)
    for refused in answer["refused"]:
        problem = refused["problem"]
        said = error_of(problem, problem["status"])
        assert isinstance(said, errors.SubmitError)  # noqa: S101  of a task nothing else is said
        yield good[refused["number"]][0].number, said


def _request(items: Sequence[Item], options: Options) -> Mapping[str, Any]:
    from pecia_schemas.tasks import task_to_json  # noqa: PLC0415  tasks are slow to load

    tasks: list[dict[str, Any]] = []
    for own in (item.own for item in items):
        url = own.task.source.url if isinstance(own.task.source, UrlRef) else None
        about = {
            "url": url,
            "kind": own.task.kind,
            "label": own.label,
            "metadata": None if own.metadata is None else dict(own.metadata),
        }
        tasks.append(task_to_json(own.task, UrlRef(url=url or "")) | about)
        del tasks[-1]["source"]
    return {
        "tasks": tasks,
        "priority": options.lane,
        "metadata": dict(options.metadata),
        "batch": options.batch and str(options.batch),
        "webhook": options.webhook and options.webhook.model_dump(mode="json"),
        "not_before": _MOMENT.dump_python(options.not_before, mode="json"),
        "expires": _MOMENT.dump_python(options.expires, mode="json"),
        "idempotency_keys": [item.own.key or str(item.job_id) for item in items],
    }
