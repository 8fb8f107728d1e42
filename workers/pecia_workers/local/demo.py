"""The stage of `pecia demo`: a throw-away fleet and a set of documents whose text is known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from pydantic import SecretStr

from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.exhibits import Exhibit, write_exhibits
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.scratch import ScratchDirectory

_LOOPBACK = ("127.0.0.0/8",)


class DemoStage:
    """A fleet of its own in a temporary home, gone with everything in it when the block ends."""

    def __init__(self, *, webhook_secret: str, tell: Callable[[str], None]) -> None:
        self._secret = SecretStr(webhook_secret)
        self._tell = tell
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            scratch = ScratchDirectory.create()
            starting.callback(scratch.remove)
            home = scratch.path
            home.chmod(0o711)  # root's Postgres runs as another account
            self._documents = home / "documents"
            self._documents.mkdir(mode=0o700)
            # Not the user's own settings: the demo is the same everywhere, and may call back to loopback.
            settings = WorkerSettings.model_construct(
                webhook_secret=self._secret, webhook_allow=_LOOPBACK, webhook_ports=(), flower_port=0
            )
            self._fleet = LocalFleet(home / "fleet", settings=settings, announce=False, tell=self._tell)
            starting.enter_context(self._fleet)
            self._fleet.wait_ready()
            self._resources = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def database_url(self) -> str:
        """The throw-away fleet's Postgres."""
        return self._fleet.settings.database_url.get_secret_value()

    @property
    def redis_url(self) -> str:
        """Its Redis."""
        return self._fleet.settings.redis_url.get_secret_value()

    @property
    def payload_url(self) -> str:
        """Its payload store."""
        return self._fleet.settings.payload_url

    def draw(self) -> list[Exhibit]:
        """Draw the documents, in the order in which they are to be handed over: bulk first, the urgent one last."""
        return write_exhibits(self._documents)
