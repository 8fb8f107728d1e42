"""The three stores of a local fleet: started by us, or given by URL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, TypeAdapter

from pecia_schemas.settings import PREFIX, WorkerSettings
from pecia_workers.local.home import Home, ScratchDirectory
from pecia_workers.local.postgres import EmbeddedPostgres, start_postgres
from pecia_workers.local.redis import EmbeddedRedis, start_redis
from pecia_workers.local.supervised import Service, ServiceState, Supervised

_DURATION = TypeAdapter(timedelta)


def environment(settings: WorkerSettings) -> dict[str, str]:
    """Return our environment with every setting that was given to us, however that was.

    One given at its default is passed on too: it wins over what a profile says.
    """
    given = {name: value for name, value in settings if name in settings.model_fields_set}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | {PREFIX + name.upper(): _text(value) for name, value in given.items()}


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return str(_DURATION.dump_python(value, mode="json"))
    return value if isinstance(value, str) else json.dumps(value)


_STOP_S = 30.0


class Stores:
    """Postgres, Redis and the documents. A server of ours that dies comes back at the same address."""

    def __init__(
        self, *, home: Home, settings: WorkerSettings, tell: Callable[[str], None] = lambda _sentence: None
    ) -> None:
        self._home = home
        self._tell = tell
        self._settings = settings
        self._units: dict[str, Supervised[EmbeddedPostgres | EmbeddedRedis]] = {}
        self._external: list[Service] = []

    @property
    def has_given_postgres(self) -> bool:
        """Return whether the settings name a Postgres, which others may use too."""
        return bool(self._settings.database_url.get_secret_value())

    @contextmanager
    def started(self) -> Iterator[WorkerSettings]:
        """Start what is not given; yields the settings with every address. Stops it in the end."""
        given = self._settings
        with ExitStack() as stack:
            postgres = given.database_url.get_secret_value() or self._start(
                stack, "postgres", partial(start_postgres, self._home.path / "postgres")
            )
            redis = given.redis_url.get_secret_value() or self._start(
                stack, "redis", partial(start_redis, self._home.path / "redis")
            )
            self._external = [
                Service(name=name, pid=None, state=ServiceState.EXTERNAL, where=_address(url))
                for name, url in (
                    ("postgres", given.database_url.get_secret_value()),
                    ("redis", given.redis_url.get_secret_value()),
                )
                if url
            ]
            yield given.with_stores(database_url=postgres, redis_url=redis, payload_url=self._payload_url())

    def tend(self) -> None:
        """Start again what died."""
        for unit in self._units.values():
            unit.tend()

    def services(self) -> list[Service]:
        """Return how they stand now."""
        return [*(unit.service for unit in tuple(self._units.values())), *self._external]

    def _start(
        self, stack: ExitStack, name: str, start: Callable[..., EmbeddedPostgres | EmbeddedRedis]
    ) -> str:
        scratch = ScratchDirectory.create()
        stack.callback(scratch.remove)
        launch = partial(start, socket_dir=scratch.path, log=self._home.log(name))
        unit = Supervised(name=name, where="", launch=launch, ready=lambda: True)
        stack.callback(unit.stop, _STOP_S)
        self._tell(f"Starting {name} …")
        unit.where = unit.start().url
        self._units[name] = unit
        return unit.where

    def _payload_url(self) -> str:
        given = self._settings.payload_url
        if not given:
            return str(self._home.payloads)
        return given if "://" in given else str(Path(given).expanduser().absolute())


def _address(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
