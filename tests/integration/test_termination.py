"""How a machine hears that it will be taken away, from servers that keep the clouds' rules."""

import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pecia_schemas.settings import SettingsError, WorkerSettings, read_settings
from pecia_workers.processes import service
from pecia_workers.processes.service import termination_heard, within_notice
from tests.shared.fixture_types import Eventually
from tests.shared.metadata_server import MetadataServer, metadata_server

pytestmark = pytest.mark.gate

CLOUDS = ["aws", "gcp", "azure"]


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with metadata_server() as server:
        yield server


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when this process was sent SIGTERM."""
    monkeypatch.setattr(service, "_NOTICE_EVERY_S", 0.02)
    told = threading.Event()
    former = signal.signal(signal.SIGTERM, lambda *_: told.set())
    yield told
    signal.signal(signal.SIGTERM, former)


def settings_of(cloud: str, server: MetadataServer) -> WorkerSettings:
    return WorkerSettings(termination_notice=cloud, termination_server=server.url)


def await_looks(server: MetadataServer, more: int, eventually: Eventually) -> None:
    before = server.looks
    eventually(lambda: server.looks >= before + more, what="more looks")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_worker_is_told_to_stop_when_the_cloud_takes_its_machine_and_not_before(
    cloud: str, server: MetadataServer, stopped: threading.Event, eventually: Eventually
) -> None:
    with termination_heard(settings_of(cloud, server)):
        await_looks(server, 5, eventually)
        assert not stopped.is_set()
        server.going = True
        eventually(stopped.is_set)


def test_a_token_that_has_run_out_is_replaced(
    server: MetadataServer, stopped: threading.Event, eventually: Eventually
) -> None:
    with termination_heard(settings_of("aws", server)):
        await_looks(server, 5, eventually)
        assert len(server.tokens) == 1
        server.forget_tokens()
        await_looks(server, 4, eventually)
        assert len(server.tokens) == 1
        server.going = True
        eventually(stopped.is_set)


def test_a_notice_to_another_machine_of_the_scale_set_is_none(
    server: MetadataServer, stopped: threading.Event, eventually: Eventually
) -> None:
    server.neighbour_going = True
    with termination_heard(settings_of("azure", server)):
        await_looks(server, 5, eventually)
    assert not stopped.is_set()


def test_a_new_file_is_a_notice(tmp_path: Path, stopped: threading.Event, eventually: Eventually) -> None:
    notice = tmp_path / "notice"
    with termination_heard(WorkerSettings(termination_notice=str(notice))):
        time.sleep(0.1)
        assert not stopped.is_set()
        notice.touch()
        eventually(stopped.is_set)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_service_that_does_not_answer_stops_nobody_and_is_told_of_once(
    cloud: str, server: MetadataServer, stopped: threading.Event, eventually: Eventually
) -> None:
    away = WorkerSettings(termination_notice=cloud, termination_server=f"{server.url}/elsewhere")
    with capture_logs() as said, termination_heard(away):
        await_looks(server, 5, eventually)
    assert not stopped.is_set()
    assert [entry["event"] for entry in said].count("termination_notice_unavailable") == 1


def test_who_has_ended_is_told_nothing_more(server: MetadataServer, stopped: threading.Event) -> None:
    with termination_heard(settings_of("gcp", server)):
        pass
    server.going = True
    time.sleep(0.1)
    assert not stopped.is_set()
    assert "termination" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("cloud", "asked", "given"), [("aws", 300, 105), ("gcp", 30, 15), ("azure", 10, 10), ("", 300, 300)]
)
def test_a_drain_fits_into_the_notice(cloud: str, asked: int, given: int) -> None:
    settings = WorkerSettings(termination_notice=cloud, drain_timeout=timedelta(seconds=asked))
    assert within_notice(settings).drain_timeout == timedelta(seconds=given)


@pytest.mark.parametrize("notice", ["ec2", "notice", "http://169.254.169.254"])
def test_a_notice_that_nobody_gives_is_refused(monkeypatch: pytest.MonkeyPatch, notice: str) -> None:
    monkeypatch.setenv("PECIA_TERMINATION_NOTICE", notice)
    with pytest.raises(SettingsError, match=r"^PECIA_TERMINATION_NOTICE is aws, gcp, azure"):
        read_settings(WorkerSettings)
