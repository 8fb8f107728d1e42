"""Calls of a client behind a gateway: the counterpart of `pecia.store` and its like, over HTTP instead of SQL."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx2

from pecia import errors, records
from pecia.aio.waiting import sleep
from pecia.formats import Format
from pecia.handles import JobView
from pecia.remote import calls
from pecia.remote.calls import Documents
from pecia.request import Item, Options
from pecia.submission import Outcome
from pecia.waiting import batches
from pecia_schemas import storable
from pecia_schemas.bundles import Split, SplitChange
from pecia_schemas.events import JobEvent, Webhook
from pecia_schemas.media import Ordinals
from pecia_schemas.messages import PartMessage
from pecia_schemas.results import Verdict
from pecia_schemas.running import Lack
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import DeliveryState


class AsyncGateway:
    """HTTP connections to a gateway, in place of a database."""

    def __init__(self, settings: ClientSettings) -> None:
        self._http = httpx2.AsyncClient(**calls.http_options(settings))

    async def get(self, path: str, of: UUID | None = None, /, **params: Any) -> Any:
        """Return the answer to a GET. Raises the error that its problem document describes."""
        query = {name: value for name, value in params.items() if value is not None}
        return await self.ask("GET", path, job_id=of, params=query, headers={"Accept": "application/json"})

    async def ask(
        self, method: str, path: str, *, job_id: UUID | None = None, repeatable: bool = True, **options: Any
    ) -> Any:
        """Return the answer: the object of a JSON body, the bytes of another accepted type, None for an empty body.

        Raises the error that a problem document describes. Transport errors are retried only if `repeatable`; a call
        that came too soon is always repeated.
        """
        accepted = options.get("headers", {}).get("Accept", "application/json")
        for remaining in range(calls.TRIES - 1, -1, -1):
            try:
                answer = await self._http.request(method, path, **options)
            except httpx2.TransportError as error:
                if not remaining or not repeatable:
                    raise errors.GatewayUnavailableError(
                        f"The gateway does not answer ({type(error).__name__}): check its URL."
                    ) from None
                await sleep(calls.PAUSE_S)
                continue
            pause = calls.pause(answer, job_id, accepted, is_last=not remaining)
            if pause is None:
                is_json = answer.headers.get("content-type", "").startswith("application/json")
                return (answer.json() if is_json else answer.content) if answer.content else None
            await sleep(pause)
        raise AssertionError  # the last try returns or raises

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


class _AsyncStore:
    """Base of the parts of a fleet that a gateway serves."""

    def __init__(self, gateway: AsyncGateway) -> None:
        self._gateway = gateway


class AsyncRemoteStore(_AsyncStore):
    """The jobs of a key's tenant, for a client to read and write."""

    async def submit(self, items: Sequence[Item], options: Options) -> list[Outcome]:
        """Submit tasks, several in a request; return the outcome of each. Raises `QueueFullError`."""
        answered: list[Outcome] = []
        remaining = iter(items)
        try:
            while some := list(islice(remaining, calls.FILES)):
                while some:
                    with ExitStack() as stack:  # closes the documents of a request
                        documents, refused = calls.opened(stack, some, options)
                        answered += refused
                        some = some[len(documents) + len(refused) :]
                        answered += await self._submit(documents, options)
        except (errors.UnavailableError, errors.QueueFullError) as error:
            error.answered = answered
            raise
        return sorted(answered, key=lambda outcome: outcome[0])

    async def _submit(self, documents: Documents, options: Options) -> list[Outcome]:
        if not documents:
            return []
        try:
            with calls.of_batch(str(options.batch)):
                answer = await self._gateway.ask("POST", "/jobs", **calls.body_of(documents, options))
        except errors.AccessError as error:
            raise calls.queue_full(error, options) from None
        except errors.SubmitError as error:
            if len(documents) == 1:
                return [(documents[0][0].number, error)]
            # The gateway refused all of them: submit each alone to learn its own reason.
            alone = [await self._submit([one], options) for one in documents]
            return [outcome for outcomes in alone for outcome in outcomes]
        return list(calls.outcomes_of(answer, documents))

    async def views(self, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return the views of the jobs that exist."""
        views: dict[UUID, JobView] = {}
        for some in batches(list(job_ids), calls.IDS):
            answer = await self._gateway.get("/jobs", id=[str(job_id) for job_id in some])
            views |= {view.id: view for view in map(calls.VIEW.validate_python, answer["jobs"])}
        return views

    async def page(self, listing: records.Listing, *, before: UUID | None, size: int) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        views: list[JobView] = []
        while len(views) < size:
            limit = min(size - len(views), calls.AT_ONCE)
            prefix, older = listing.prefix or None, before and str(before)
            answer = await self._listed("/jobs", listing, prefix=prefix, before=older, limit=limit)
            views += [calls.VIEW.validate_python(job) for job in answer["jobs"]]
            if (before := answer["next"]) is None:
                break
        return views

    async def _listed(self, path: str, listing: records.Listing, **more: Any) -> Any:
        """Return the gateway's answer about the jobs of a listing."""
        with calls.of_batch(str(listing.batch)):
            return await self._gateway.get(path, **calls.query_of(listing) | more)

    async def open_batch(self, name: str | None) -> records.Batch:
        """Return a new batch, or the existing batch of this name."""
        return records.Batch.model_validate(await self._gateway.ask("POST", "/batches", json={"name": name}))

    async def batch(self, reference: str) -> records.Batch:
        """Return the batch with this name or id, or the only one whose id begins so. Raises `BatchNotFoundError`."""
        # A batch has no such name, and no URL path could contain it.
        if not 0 < len(reference) <= storable.BATCH or reference in {".", ".."}:
            raise errors.BatchNotFoundError(reference)
        with calls.of_batch(reference):
            answer = await self._gateway.get(f"/batches/{quote(reference, safe='')}")
            return records.Batch.model_validate(answer)

    async def counts(self, listing: records.Listing) -> records.Counts:
        """Return the counts of the jobs by state."""
        return records.Counts.model_validate(await self._listed("/counts", listing))

    async def found_pages(
        self,
        verdicts: Collection[Verdict],
        listing: records.Listing,
        *,
        after: records.FoundPage | None,
        size: int,
    ) -> list[records.FoundPage]:
        """Return up to `size` pages with one of these verdicts, the newest job first, then by number."""
        follows = after and f"{after.job_id}:{after.number}{':conflict' if after.is_conflict else ''}"
        limit = min(size, calls.AT_ONCE)
        answer = await self._listed("/pages", listing, verdict=list(verdicts), after=follows, limit=limit)
        return calls.PAGES.validate_python(answer["pages"])

    async def lacking(self, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts need and no running worker can do."""
        lacks: list[Lack] = []
        for job_id in job_ids:
            lacks += calls.LACKS.validate_python(await self._gateway.get(f"/jobs/{job_id}/lacks", job_id))
        return lacks

    async def outcomes(
        self,
        job_id: UUID,
        *,
        skip: Ordinals | None = None,
        limit: int | None = None,
        read_as: records.AuditAction | None = None,
        revision: int | None = None,
    ) -> list[records.PartOutcome]:
        """Return the parts that have ended, in order. The gateway records the read in the audit trail."""
        outcomes: list[records.PartOutcome] = []
        seen = skip.copy() if skip else Ordinals()
        while limit is None or len(outcomes) < limit:
            answer = await self._gateway.get(
                f"/jobs/{job_id}/pages",
                job_id,
                skip=seen.written(storable.PAGES) or None,
                whole=read_as is records.AuditAction.RESULT,
                revision=revision,
            )
            parts = calls.OUTCOMES.validate_python(answer["parts"])
            fresh = [outcome for outcome in parts if outcome.ordinal not in seen]
            outcomes += fresh
            for outcome in fresh:
                seen.add(outcome.ordinal)
            if not answer["more"] or not fresh:
                break
        return outcomes[:limit]

    async def drawn(
        self, job_id: UUID, form: Format, *, quality: int, revision: int | None, document: int | None
    ) -> bytes:
        """Return a result, or a document of a bundle, with the pages' pictures, as the gateway renders it."""
        said = {"revision": revision, "document": document, "with_conflicts": document and True}
        query: dict[str, Any] = {"format": form.value, "quality": quality}
        query |= {name: value for name, value in said.items() if value is not None}
        media_type = "application/pdf" if form is Format.PDF else "text/html"
        content: bytes = await self._gateway.ask(
            "GET",
            f"/jobs/{job_id}/result",
            job_id=job_id,
            params=query,
            headers={"Accept": media_type},
            timeout=calls.DRAWING,
        )
        return content

    async def first_unfinished(self, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change, or None if none may. 0 until the document is cut."""
        answer = await self._gateway.get(f"/jobs/{job_id}/pages", job_id, limit=0)
        return None if answer["first_open"] is None else int(answer["first_open"])

    async def events(self, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those in `skip`."""
        answer = await self._gateway.get(f"/jobs/{job_id}/events", job_id, after=after)
        return [event for event in calls.EVENTS.validate_python(answer) if event.sequence not in skip]


class AsyncRemoteTransitions(_AsyncStore):
    """Changes of jobs through a gateway. The gateway itself publishes their parts to the fleet."""

    async def cancel(self, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        """Cancel the jobs that have not ended, and return them."""
        cancelled: list[UUID] = []
        for job_id in job_ids:
            path, body = f"/jobs/{job_id}/cancel", {"reason": reason}
            answer = await self._gateway.ask("POST", path, job_id=job_id, repeatable=False, json=body)
            cancelled += [job_id] if answer["cancelled"] else []
        return cancelled

    async def retry(self, job_id: UUID, parts: Collection[UUID] | None = None) -> list[PartMessage]:
        """Run the failed and cancelled parts of an ended job again, all or those given."""
        body = {"parts": None if parts is None else [str(part) for part in parts]}
        await self._gateway.ask("POST", f"/jobs/{job_id}/retry", job_id=job_id, repeatable=False, json=body)
        return []


class AsyncRemoteReviews(_AsyncStore):
    """Corrections of bundles."""

    async def correct(self, job_id: UUID, change: SplitChange, seen: int | None) -> Split:
        """Write a new revision of a bundle's split, and return it."""
        path, body = f"/jobs/{job_id}/split", {"change": change.model_dump(mode="json"), "revision": seen}
        return Split.model_validate(
            await self._gateway.ask("POST", path, job_id=job_id, repeatable=False, json=body)
        )


class AsyncRemoteAccounts(_AsyncStore):
    """Usage of a tenant's jobs."""

    async def of_job(self, job_id: UUID) -> records.UsageFigures:
        """Return the sums over one job's parts."""
        return records.UsageFigures.model_validate(await self._gateway.get(f"/jobs/{job_id}/usage", job_id))

    async def since(self, moment: datetime | None, by: str | None) -> Any:  # noqa: ARG002  the signature of `Accounts`
        """Raise the error that a gateway does not offer this call."""
        raise calls.not_offered("the usage of a fleet")


class AsyncRemoteEndpoints(_AsyncStore):
    """The endpoints of a tenant."""

    async def add(self, options: Webhook) -> records.Endpoint:
        """Register an endpoint; return it with its secret."""
        body = options.model_dump(mode="json")
        return records.Endpoint.model_validate(
            await self._gateway.ask("POST", "/webhooks", repeatable=False, json=body)
        )

    async def all(self) -> list[records.Endpoint]:
        """Return all endpoints, the oldest first."""
        return calls.ENDPOINTS.validate_python(await self._gateway.get("/webhooks"))

    async def remove(self, endpoint: UUID) -> None:
        """Delete an endpoint and its deliveries, done and pending."""
        await self._gateway.ask("DELETE", f"/webhooks/{endpoint}")

    async def rotate(self, endpoint: UUID, overlap: timedelta) -> records.Endpoint:
        """Give an endpoint a new secret. During the overlap the former one signs too."""
        path, body = f"/webhooks/{endpoint}/rotate", {"overlap": overlap.total_seconds()}
        return records.Endpoint.model_validate(
            await self._gateway.ask("POST", path, repeatable=False, json=body)
        )

    async def test(self, endpoint: UUID) -> UUID:
        """Queue a test notice before all other deliveries; return the id of its delivery."""
        answer = await self._gateway.ask("POST", f"/webhooks/{endpoint}/test", repeatable=False)
        return UUID(answer["id"])


class AsyncRemoteDeliveries(_AsyncStore):
    """The deliveries of a tenant's webhooks, done and pending."""

    async def latest(
        self,
        *,
        job_id: UUID | None,
        endpoint_id: UUID | None,
        state: DeliveryState | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[records.Delivery]:
        """Return the matching deliveries with their attempts, newest first; without a limit, the latest 500."""
        if limit == 0:
            return []
        if limit is not None and limit > calls.AT_ONCE:
            raise errors.InvalidOptionError(
                f"A gateway returns at most {calls.AT_ONCE} deliveries: set a lower limit or a filter."
            )
        answer = await self._gateway.get(
            "/deliveries",
            job_id=job_id and str(job_id),
            webhook_id=endpoint_id and str(endpoint_id),
            state=state,
            since=since and since.isoformat(),
            limit=limit or calls.AT_ONCE,
        )
        return calls.DELIVERIES.validate_python(answer)

    async def one(self, delivery_id: UUID) -> records.Delivery:
        """Return a delivery with its attempts."""
        return records.Delivery.model_validate(await self._gateway.get(f"/deliveries/{delivery_id}"))

    async def replay(self, delivery_ids: Collection[UUID]) -> None:
        """Send ended deliveries again."""
        for delivery_id in delivery_ids:
            await self._gateway.ask("POST", f"/deliveries/{delivery_id}/replay", repeatable=False)


class AsyncRemotePurging(_AsyncStore):
    """Erasure through a gateway, of jobs that the caller names."""

    async def fitting(self, selection: records.Selection) -> list[UUID]:
        """Return the named jobs. Raises `AccessError` for other filters."""
        if selection.job_ids is None or selection.before is not None or selection.metadata:
            raise calls.not_offered("erasing by time or metadata")
        return list(selection.job_ids)

    async def look(self, job_ids: Sequence[UUID]) -> list[records.Erasure]:  # noqa: ARG002  the signature of `Purging`
        """Raise the error that a gateway does not offer this call."""
        raise calls.not_offered("a dry run of an erasure")

    async def erase(self, job_ids: Sequence[UUID], reason: str | None) -> list[records.Erasure]:
        """Erase the content of these jobs; return what was erased."""
        erased: list[records.Erasure] = []
        for job_id in job_ids:
            answer = await self._gateway.ask(
                "DELETE", f"/jobs/{job_id}", job_id=job_id, json={"reason": reason}
            )
            erased += [records.Erasure.model_validate(answer)] if answer else []
        return erased
