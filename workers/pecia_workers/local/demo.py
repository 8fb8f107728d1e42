"""The stage of `pecia demo`: a throw-away fleet and a set of documents whose text is known."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from pecia_schemas import DocumentType, Lane
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local import sample_documents as samples
from pecia_workers.local.accuracy import accuracy
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.scratch import ScratchDirectory

_LOOPBACK = ("127.0.0.0/8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One document of the demo and what is expected of it."""

    title: str
    path: Path
    document_type: DocumentType
    lane: Lane
    text: str | None
    """What stands on it, a form feed between pages; None for the one that cannot be read."""

    def accuracy(self, read: str) -> float:
        """Return how well a text agrees with what stands on it: 1.0 is exact."""
        return accuracy(read, self.text or "")


class DemoStage:
    """A fleet of its own in a temporary home, gone with everything in it when the block ends."""

    def __init__(self, *, webhook_secret: str) -> None:
        self._secret = SecretStr(webhook_secret)
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
            self._fleet = LocalFleet(home / "fleet", settings=settings, announce=False)
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
        chart = samples.sample_document(DocumentType.CHART)
        diagnosis = samples.sample_document(DocumentType.DIAGNOSIS)
        lab = samples.sample_document(DocumentType.LAB_RESULT)
        turned = samples.sample_document(DocumentType.DIAGNOSIS, seed=1)
        damaged = samples.sample_document(DocumentType.LAB_RESULT, seed=1)
        urgent = samples.sample_document(DocumentType.PRESCRIPTION)
        exhibits = [
            self._exhibit("hospital chart", "chart.pdf", chart, Lane.BULK),
            self._exhibit("diagnosis certificate", "diagnosis.png", diagnosis, Lane.BULK),
            self._exhibit("lab result", "lab.png", lab, Lane.BULK),
            self._exhibit("scan turned by 90°", "turned.jpg", turned, Lane.NORMAL),
            self._exhibit("damaged upload", "damaged.png", damaged, Lane.NORMAL, readable=False),
            self._exhibit("prescription, sent last", "prescription.png", urgent, Lane.URGENT),
        ]
        samples.write_pdf(chart, self._documents / "chart.pdf")
        samples.write_png(diagnosis, self._documents / "diagnosis.png")
        samples.write_png(lab, self._documents / "lab.png")
        samples.write_scan(turned, self._documents / "turned.jpg")
        samples.write_damaged_png(damaged, self._documents / "damaged.png")
        samples.write_png(urgent, self._documents / "prescription.png")
        return exhibits

    def _exhibit(
        self, title: str, name: str, document: samples.SampleDocument, lane: Lane, *, readable: bool = True
    ) -> Exhibit:
        text = document.text if name.endswith(".pdf") else document.text.partition("\f")[0]
        return Exhibit(
            title=title,
            path=self._documents / name,
            document_type=document.document_type,
            lane=lane,
            text=text if readable else None,
        )
