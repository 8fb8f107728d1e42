"""What tests of every level want; `shared/servers.py` is for those with servers."""

import asyncio
import inspect
import os
import shutil
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pecia_workers.local.home import ScratchDirectory
from tests.shared.korean import korean_tessdata
from tests.shared.npm_files import NothingThereError

pytest_plugins = ["tests.shared.left_out"]

_PROPERTY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
settings.register_profile("gate", _PROPERTY, max_examples=100)  # --hypothesis-profile=gate
settings.register_profile("quick", _PROPERTY, max_examples=25)
settings.load_profile("quick")


def pytest_configure() -> None:
    """Forget the caller's settings before any test module is imported, and hear Ctrl-C even in the background.

    A shell has what it runs in the background ignore Ctrl-C, and processes that the tests start would inherit that.
    """
    for name in [name for name in os.environ if name.startswith("PECIA_")]:
        del os.environ[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    )
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """End a test that lacks files of npm's registry: skipped on a laptop, failed in CI."""
    try:
        yield
    except NothingThereError as error:
        sentence = f"{error}: this test needs npm and a registry that it can reach."
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)


pytest_runtest_call = pytest_runtest_setup


@pytest.fixture(scope="session")
def session_directory() -> Iterator[Path]:
    """A directory for servers, open to the account that Postgres runs as; swept even after kill -9."""
    scratch = ScratchDirectory.create()
    scratch.path.chmod(0o711)
    yield scratch.path
    scratch.remove()


@pytest.fixture(scope="session", autouse=True)
def _no_fleet_of_the_user(session_directory: Path) -> Iterator[None]:
    """A fleet that the user runs is nothing to the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(session_directory / "state"))
        patch.setenv("XDG_DATA_HOME", str(session_directory / "share"))
        yield


@pytest.fixture
def short_path(session_directory: Path) -> Iterator[Path]:
    """An empty directory whose path is short enough for a socket in it, and open to Postgres's account."""
    path = session_directory / uuid.uuid4().hex[:8]
    path.mkdir()
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def tessdata() -> str:
    """Where Tesseract's Korean data is."""
    pytest.importorskip("tesserocr", reason="pecia[korean] brings tesserocr")
    return str(korean_tessdata())


@pytest.fixture
def payload_url(tmp_path: Path) -> str:
    """A payload store: a directory of the test's own."""
    path = tmp_path / "payloads"
    path.mkdir()
    return str(path)
