"""Why a file or page could not be turned into pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pecia_schemas.failures import FailureCode


class MediaError(Exception):
    """A file or page that the fleet cannot read; says the code and what was found, never a name or text of the file."""

    def __init__(self, code: FailureCode, found: str) -> None:
        super().__init__(code, found)  # positional, so that it survives the way back from another process
        self.code = code
        self.found = found

    def __str__(self) -> str:
        return f"{self.code}: {self.found}"
