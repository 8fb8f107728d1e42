"""What a fleet stands on and cannot see: the disk under the documents, its machines' clocks, the way to its servers."""

import asyncio
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_FILLING_BYTES = 256 * 1024


class CannotInjectError(Exception):
    """This machine does not permit the fault."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A directory on a disk so small that it can be filled."""

    path: Path

    @classmethod
    def mount(cls, path: Path, *, megabytes: int) -> Self | None:
        """Make `path` a file system of its own for this process and those it starts; it goes with the last of them.

        Returns None where that is not permitted: it takes root. Call it before any thread starts.
        """
        path.mkdir(mode=0o700)
        libc = ctypes.CDLL(None)
        if os.geteuid() or libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_PRIVATE, None):
            return None
        options = f"size={megabytes}m,mode=0700".encode()
        return None if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options) else cls(path)

    def fill(self) -> None:
        """Leave no room for another byte."""
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(_FILLING_BYTES)):
                pass

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.path / "filler"


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock of one worker's machine, as its Python sees it."""

    file: Path

    @classmethod
    def right(cls, file: Path) -> Self:
        clock = cls(file)
        file.write_bytes(struct.pack("d", 0.0))
        return clock

    def jump(self, seconds: float) -> None:
        """Set it so far ahead of the true time, or behind it."""
        with self.file.open("r+b") as stream:
            stream.write(struct.pack("d", seconds))

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process live by it."""
        here = str(Path(__file__).parent / "clock")
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        return {"SOAK_CLOCK": str(self.file), "PYTHONPATH": path}


_CHUNK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
"""Do not linger: who is cut off gets a reset, not an orderly end."""


@dataclass(slots=True, eq=False)
class _Connection:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    silent: bool = False
    doomed: bytes | None = None
    """The reply to the next request that contains these words is lost."""
    losing: bool = False
    """Whether that request has passed."""

    def abort(self) -> None:
        for writer in (self.near, self.far):
            writer.transport.abort()

    def silence(self) -> None:
        self.silent = True

    def hears(self, request: bytes) -> None:
        self.losing = self.losing or (self.doomed is not None and self.doomed in request)


class Proxy:
    """Listens on a free port of loopback and forwards to a unix socket, on a loop in a thread of its own."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._connections: set[_Connection] = set()
        self._delay_s = 0.0
        self._away = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"proxy-{target.name}", daemon=True
        )
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> int:
        """Close every connection on both sides; return how many there were."""
        return self._do(_Connection.abort)

    def silence(self) -> int:
        """Let nothing through on the connections there are, for good, and close none of them; return how many.

        What a firewall does that forgot them. New ones work.
        """
        return self._do(_Connection.silence)

    def lose_replies(self, to: bytes | None) -> None:
        """Let the server carry out the next request of each connection that contains these words, then cut it.

        None: lose no reply that is not lost yet.
        """

        def doom(connection: _Connection) -> None:
            connection.doomed = to

        self._do(doom)

    def close(self) -> None:
        """Cut every connection and refuse new ones, as a server that is away."""
        self._away = True
        self.cut()

    def redirect(self, target: Path) -> None:
        """Forward new connections to another server; those there are stay where they are."""
        self._target = target

    def hold(self) -> None:
        """Hold back whatever comes, on new connections too, as a server that stands still."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def open(self) -> None:
        """Let through again what was held or refused."""
        self._away = False
        self._loop.call_soon_threadsafe(self._flowing.set)

    def delay(self, seconds: float) -> None:
        """Hold back whatever passes, in both directions, for so long; 0: no longer."""
        self._delay_s = seconds

    def _do(self, act: Callable[[_Connection], None]) -> int:
        async def acted() -> int:
            connections = tuple(self._connections)
            for connection in connections:
                act(connection)
            return len(connections)

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._away = True
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        # A closed server makes no transport of what was accepted last, and leaves it open.
        await asyncio.sleep(0)
        self._server.close()
        self._flowing.set()
        # Some may have been accepted whose task has not begun, or reaches the server only now.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.wait(others, timeout=0.1)
        await asyncio.sleep(0)  # transports that were aborted close

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        near.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._away:
            near.transport.abort()
            return
        try:
            far_reader, far = await asyncio.open_unix_connection(self._target)
        except OSError:  # the server is away
            near.transport.abort()
            return
        connection = _Connection(near, far)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._forward(connection, near_reader, far), self._forward(connection, far_reader, near)
            )
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _forward(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flowing.wait()
                if writer is connection.far:
                    connection.hears(data)
                elif connection.losing:
                    break
                if not connection.silent:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        if not connection.silent:
            connection.abort()
