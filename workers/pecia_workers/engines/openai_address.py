"""Where an OpenAI-compatible server is, and what lets us in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx2

from pecia_workers.engines.base import EngineUnavailableError

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_API: Final = "/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A server's two roots, neither with a slash at its end."""

    api: str
    """Of OpenAI's paths."""
    root: str
    """Of the server's own: its health, its tokenizer."""
    headers: dict[str, str] = field(repr=False)
    """Of every request; the key is in them and nowhere else."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> ServerAddress:
        """Return what the settings say. Raises `EngineUnavailableError`, which repeats no key."""
        api = _api(settings.engine_url)
        return cls(api=api, root=api.removesuffix(_API), headers=_headers(settings))


def _api(given: str) -> str:
    try:
        url = httpx2.URL(given.strip().rstrip("/"))
    except httpx2.InvalidURL:
        raise EngineUnavailableError(
            "PECIA_ENGINE_URL is no address: write it as http://host:8000/v1."
        ) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise EngineUnavailableError(
            "PECIA_ENGINE_URL must begin with http:// or https:// and a host, as in http://host:8000/v1."
        )
    if url.userinfo or url.query:
        raise EngineUnavailableError(
            "PECIA_ENGINE_URL would be seen in logs: a key belongs in PECIA_ENGINE_API_KEY alone."
        )
    return str(url) if url.path.strip("/") else str(url).rstrip("/") + _API


def _headers(settings: WorkerSettings) -> dict[str, str]:
    key = settings.engine_api_key.get_secret_value().strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise EngineUnavailableError("PECIA_ENGINE_API_KEY holds what no header can carry.")
    return {"Authorization": f"Bearer {key}"}
