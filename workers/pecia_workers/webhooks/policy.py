"""What a receiver's answer, or its silence, means for a delivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus

from pecia_schemas.states import DeliveryState
from pecia_workers.ledger.outbox import DeliveryOutcome, ReceiverState
from pecia_workers.outgoing.guard import Refusal
from pecia_workers.webhooks.schedule import RetrySchedule, parse_retry_after
from pecia_workers.webhooks.sender import Reply, SendFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Any 2xx is delivery, 410 and a refused target are the end, everything else is tried again, `attempts` times."""

    attempts: int
    schedule: RetrySchedule = field(default_factory=RetrySchedule)

    def refused(self, refusal: Refusal) -> DeliveryOutcome:
        """Return the outcome for a target that may not be called."""
        return DeliveryOutcome(state=DeliveryState.DEAD, error=refusal.value)

    def unanswered(self, turn: int, failure: SendFailure) -> DeliveryOutcome:
        """Return the outcome of a try that got no answer."""
        ours = failure in {SendFailure.INTERNAL, SendFailure.KEY}
        receiver = ReceiverState.UNKNOWN if ours else ReceiverState.FAILING
        return self._again(turn, error=failure.value, receiver=receiver)

    def answered(self, turn: int, reply: Reply) -> DeliveryOutcome:
        """Return the outcome of a try that got this answer. A redirect is an answer, and not followed."""
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return DeliveryOutcome(
                state=DeliveryState.DELIVERED, status=reply.status, receiver=ReceiverState.WELL
            )
        error = f"http_{reply.status}"
        if reply.status == HTTPStatus.GONE:
            return DeliveryOutcome(
                state=DeliveryState.DEAD, status=reply.status, error=error, receiver=ReceiverState.GONE
            )
        asked = parse_retry_after(reply.retry_after)
        return self._again(
            turn, error=error, receiver=ReceiverState.FAILING, status=reply.status, asked=asked
        )

    def _again(
        self,
        turn: int,
        *,
        error: str,
        receiver: ReceiverState,
        status: int | None = None,
        asked: timedelta | None = None,
    ) -> DeliveryOutcome:
        if turn >= self.attempts:
            return DeliveryOutcome(state=DeliveryState.DEAD, status=status, error=error, receiver=receiver)
        return DeliveryOutcome(
            state=DeliveryState.PENDING,
            status=status,
            error=error,
            receiver=receiver,
            retry_in=self.schedule.after(turn, asked=asked),
        )
