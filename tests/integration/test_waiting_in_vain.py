"""Who waits at a terminal for what no running worker can do is told so, once, and what to start."""

import pytest

from fixture_types import Eventually, Picture
from pecia import Client, ReadDocument
from pecia.cli import watching
from pecia.cli.backfill import _uncut
from pecia.cli.watching import follow, unserved_told
from pecia.errors import JobTimeoutError

PDF_TO_BE = b"%PDF-1.4"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_UNSERVED_S", 0.05)


def test_what_nobody_does_is_said_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    group = client.submit_many([ReadDocument(PDF_TO_BE)] * 3)
    with pytest.raises(JobTimeoutError):
        follow(group, timeout=1)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("pecia: still waiting: no running worker cuts documents")
    assert "start `pecia worker ingest`" in told[0]


def test_who_reads_pages_beside_is_told_only_of_documents_that_nobody_cuts(
    client: Client, picture: Picture, eventually: Eventually, capsys: pytest.CaptureFixture[str]
) -> None:
    page, document = client.submit(ReadDocument(picture())), client.submit(ReadDocument(PDF_TO_BE))
    told: list[str] = []

    def lines() -> list[str]:
        told.extend(capsys.readouterr().err.splitlines())
        return told

    with unserved_told(lambda: _uncut([client.group([page, document])])):
        eventually(lines)

    assert "cuts documents" in told[0]
    document.cancel()
    with unserved_told(lambda: _uncut([client.group([page, document])])), pytest.raises(JobTimeoutError):
        page.wait(0.5)
    assert capsys.readouterr().err == ""
