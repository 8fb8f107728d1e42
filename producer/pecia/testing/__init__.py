"""Pecia for your own tests: a fleet in memory, used through real clients.

with FakeFleet() as fleet:
    fleet.answers(ReadDocument, text="Amoxicillin 500 mg")
    client = fleet.client()
"""

from pecia.testing.fleet import FakeFleet, NotFakedError
from pecia.testing.jobs import Answer, Callback, Piece, ScriptError, Submitted

__all__ = ["Answer", "Callback", "FakeFleet", "NotFakedError", "Piece", "ScriptError", "Submitted"]
