"""Settings of clients and of the fleet: argument, then `PECIA_*` in the environment, then `.env`.

Two classes, `ClientSettings` and `WorkerSettings`, one place. An unknown `PECIA_*` name is refused with a suggestion,
so that a typing error never becomes a silent default.
"""

from typing import TYPE_CHECKING, Any

from pecia_schemas.settings.base import (
    PREFIX,
    ClientSettings,
    ConnectionSettings,
    SettingsError,
    known_names,
    read_settings,
)

if TYPE_CHECKING:
    from pecia_schemas.settings.worker import WorkerSettings

__all__ = [
    "PREFIX",
    "ClientSettings",
    "ConnectionSettings",
    "SettingsError",
    "WorkerSettings",
    "known_names",
    "read_settings",
]


def __getattr__(name: str) -> Any:
    if name != "WorkerSettings":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pecia_schemas.settings.worker import WorkerSettings  # noqa: PLC0415  a client does without it

    return WorkerSettings
