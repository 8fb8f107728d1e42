"""What a soak breaks beneath a fleet is really broken: the clock is wrong, the disk is full, the network is silent."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.soak.proxy import Proxy
from tests.soak.surroundings import Clock

from limits import WAIT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def echo(short_path: Path) -> Iterator[Path]:
    """A server that says whatever it hears."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path / "echo"))
        listener.listen()
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield short_path / "echo"
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_repeat, args=(connection,), daemon=True).start()


def _repeat(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1024):
            connection.sendall(data)


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S)


def _said_back(connection: socket.socket, words: bytes) -> bytes:
    connection.sendall(words)
    return connection.recv(1024)


def test_a_cut_ends_the_connections_there_are(echo: Path) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as old:
        _said_back(old, b"words")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            _said_back(old, b"words")
        with _connect(proxy) as new:
            assert _said_back(new, b"words") == b"words"


def test_silence_closes_nothing_and_lets_nothing_through(echo: Path) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as old:
        _said_back(old, b"words")
        assert proxy.silence() == 1
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            _said_back(old, b"words")
        with _connect(proxy) as new:
            assert _said_back(new, b"words") == b"words"


def test_a_lost_reply_is_one_to_these_words_and_costs_the_connection(echo: Path) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as doomed, _connect(proxy) as spared:
        _said_back(doomed, b"words")
        _said_back(spared, b"words")
        proxy.lose_replies(b"COMMIT")
        assert _said_back(doomed, b"other words") == b"other words"
        with pytest.raises(ConnectionResetError):
            _said_back(doomed, b"COMMIT")
        proxy.lose_replies(None)
        assert _said_back(spared, b"COMMIT") == b"COMMIT"


def test_what_is_held_comes_through_as_soon_as_it_is_let_through(echo: Path) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as old:
        proxy.hold()
        with _connect(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"words")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1024)
            proxy.open()
            for connection in (old, new):
                connection.settimeout(WAIT_S)
                assert connection.recv(1024) == b"words"


def test_a_proxy_that_is_closed_cuts_and_refuses_until_it_is_opened(echo: Path) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as old:
        _said_back(old, b"words")
        proxy.close()
        with pytest.raises(ConnectionResetError):
            _said_back(old, b"words")
        with _connect(proxy) as refused, pytest.raises(ConnectionResetError):
            _said_back(refused, b"words")
        proxy.open()
        with _connect(proxy) as new:
            assert _said_back(new, b"words") == b"words"


def test_a_server_that_is_away_is_no_connection(short_path: Path) -> None:
    with (
        Proxy(short_path / "away") as proxy,
        pytest.raises(ConnectionResetError),  # as soon as it is made, or later
        _connect(proxy) as connection,
    ):
        connection.recv(1)


def test_a_clock_that_jumped_is_wrong_but_measures_right(tmp_path: Path) -> None:
    clock = Clock.right(tmp_path / "clock")
    look = "print(time.time(), time.monotonic(), flush=True); sys.stdin.readline()"
    program = f"import sys, time\nfor _ in range(2): {look}"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    before = [float(word) for word in process.stdout.readline().split()]
    clock.jump(3_600)
    after = [float(word) for word in process.communicate("\n")[0].split()]
    assert before[0] == pytest.approx(time.time(), abs=60)
    assert after[0] - before[0] > 3_590
    assert after[1] - before[1] < 60


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_small_disk_can_be_filled_and_goes_with_its_processes(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.soak.surroundings import SmallDisk
disk = SmallDisk.mount(Path(sys.argv[1]) / "disk", megabytes=1)
if disk is None:
    sys.exit("not permitted")
disk.fill()
try:
    (disk.path / "document").write_bytes(bytes(4096))
except OSError as error:
    print(error.errno)
disk.empty()
print((disk.path / "document").write_bytes(bytes(4096)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "not permitted" in done.stderr:
        pytest.skip("this account may not mount")
    assert done.stdout.split() == [str(errno.ENOSPC), "4096"]
    assert list((tmp_path / "disk").iterdir()) == []
