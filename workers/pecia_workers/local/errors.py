"""What can go wrong with servers and processes on this machine; each sentence says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 2000


class EmbeddedError(RuntimeError):
    """A server or process of the local fleet cannot do its work. The text says what to do."""


class FleetRunningError(EmbeddedError):
    """Another supervisor already keeps this home."""


def tail(log: Path) -> str:
    """Return the last lines of a server's log, or nothing if there are none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""
