"""Every SQL statement of the fleet. Postgres is the truth; what it has not committed has not happened."""

from pecia_workers.ledger.claim import ClaimedPart, ClaimRequest
from pecia_workers.ledger.commit import Cut, Done, Failed, Finished, NewPart, Outcome
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger, PartLostError

__all__ = [
    "ClaimRequest",
    "ClaimedPart",
    "Cut",
    "Done",
    "Failed",
    "Finished",
    "Ledger",
    "NewPart",
    "Outcome",
    "PartLostError",
    "open_database",
]
