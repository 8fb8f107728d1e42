"""A throw-away fleet, for `pecia eval`, and with documents whose text is known, for `pecia demo`."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pypdfium2
from pydantic import SecretStr

from pecia_schemas.blocks import text_of
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.commands.common import UNAVAILABLE, USAGE, refused, settings_or_exit
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import EmbeddedError
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits, MediaError
from pecia_workers.media.samples import Exhibit, write_exhibits


def own_text(path: Path) -> list[tuple[str, str]]:
    """Return the text of every page in two orders; empty if the file is locked or damaged.

    First the visible text in reading order; then the text in the file's own order. A page whose text layer is not
    trusted has the second twice.
    """
    limits = Limits.of(settings_or_exit())
    try:
        with pypdfium2.PdfDocument(path) as document:
            in_file = [page.get_textpage().get_text_bounded() for page in document]
        laid_out = [text_of(load_page(path, index, limits).blocks) for index in range(len(in_file))]
    except (pypdfium2.PdfiumError, MediaError):
        return []
    return [(seen or written, written) for seen, written in zip(laid_out, in_file, strict=True)]


_LOOPBACK = ("127.0.0.0/8",)
_READY_S: Final = 120
_LOADING_S: Final = 900
"""Seconds for a start, in which a language model may be downloaded."""


class ThrowAwayFleet:
    """A fleet in a temporary home, which is removed with the fleet's data when the block ends."""

    def __init__(self, settings: WorkerSettings, *, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._report = report
        self._resources = ExitStack()

    @classmethod
    def with_engine(cls, engine: str, *, report: Callable[[str], None]) -> Self:
        """Return a fleet that reads with this engine, with settings from the environment and stores of its own."""
        settings = settings_or_exit().with_stores(database_url="", redis_url="", payload_url="")
        own = {"engine": engine, "flower_port": 0, "webhook_ports": ()}
        return cls(settings.model_copy(update=own), report=report)

    def __enter__(self) -> Self:
        try:
            return self._start()
        except EmbeddedError as error:
            raise refused(error, UNAVAILABLE) from None

    def _start(self) -> Self:
        with ExitStack() as starting:
            scratch = ScratchDirectory.create()
            starting.callback(scratch.remove)
            home = scratch.path
            home.chmod(0o711)  # root's Postgres runs as another account
            self._documents = home / "documents"
            self._documents.mkdir(mode=0o700)
            fleet = LocalFleet(home / "fleet", settings=self._settings, announce=False, report=self._report)
            starting.enter_context(fleet)
            fleet.wait_ready(_LOADING_S if self._settings.engine == "vllm" else _READY_S)
            self.database_url = fleet.settings.database_url.get_secret_value()
            self.redis_url = fleet.settings.redis_url.get_secret_value()
            self.payload_url = fleet.settings.payload_url
            self._resources = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


_READER: Final = Path(__file__).parents[3] / "tests" / "engine" / "reader"
"""Directory in a clone of a model that reads slips, with slips."""
_SMALL: Final[dict[str, Any]] = {
    "engine": "vllm",
    "enforce_eager": True,
    "kv_cache_bytes": 1 << 28,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 8,
    "max_output_tokens": 400,
}


class DemoStage(ThrowAwayFleet):
    """A throw-away fleet that may call webhooks on this machine, and documents for it."""

    def __init__(self, engine: str, *, webhook_secret: str, report: Callable[[str], None]) -> None:
        self._slips = reader_of_slips() / "slips" if engine == "vllm" else None
        reading = {**_SMALL, "model": str(self._slips.parent.resolve())} if self._slips else {}
        # Not the user's own settings: the demo is the same everywhere.
        settings = WorkerSettings.model_construct(
            webhook_secret=SecretStr(webhook_secret),
            webhook_allow=_LOOPBACK,
            webhook_ports=(),
            flower_port=0,
            **reading,
        )
        super().__init__(settings, report=report)

    def draw(self) -> list[Exhibit]:
        """Draw the documents in the order of submission: bulk first, the urgent one last."""
        if self._slips is None:
            return write_exhibits(self._documents)
        return [
            Exhibit(
                title=f"slip {path.stem}",
                path=path,
                document_type=DocumentType.PRESCRIPTION,
                lane=Lane.NORMAL,
                text=path.with_suffix(".txt").read_text(encoding="utf-8"),
                least=1,
                misread=path.stem.startswith("wrong"),
            )
            for path in sorted(self._slips.glob("*.png"))
        ]


def reader_of_slips() -> Path:
    """Return the directory of the model that reads slips, or exit: clones have it, wheels do not."""
    model = Path(os.environ.get("PECIA_MODEL") or _READER)
    if any(model.glob("slips/*.png")):
        return model
    why = f"{model} is no model with `slips`. It is tests/engine/reader of a clone of Pecia, and in no wheel"
    raise refused(f"{why}: set PECIA_MODEL to that directory.", USAGE)
