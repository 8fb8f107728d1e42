"""A bounded number of processes for work that may hang, crash or eat memory, awaited from one loop."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import structlog
from pydantic import TypeAdapter

from pecia_workers.confinement import confine
from pecia_workers.media.errors import MediaError
from pecia_workers.media.frames import (
    CallFailedError,
    Form,
    InvalidAnswerError,
    plain,
    receive_answer,
    receive_call,
    send_answer,
    send_call,
)
from pecia_workers.template import Forked, Template, TemplateDiedError, imported, show_as

log = structlog.get_logger(__name__)

T = TypeVar("T")

_START_TIMEOUT_S = 120.0
_READY = plain(TypeAdapter(bool))


class ProcessDiedError(Exception):
    """The process ended in the middle of this call; calls in other processes go on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """One process and a socket that nothing else holds: it ends with the process, even in the middle of an answer."""

    process: Forked
    channel: socket.socket

    @classmethod
    def launch(cls, template: Template, initargs: tuple[Any, ...]) -> Self:
        """Start it; once it is ready it says whether the kernel confines it. Raises `TemplateDiedError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = template.fork(_serve_at, *initargs, descriptors=[theirs.fileno()])
        return cls(process, ours)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a call; the socket of one that has ended has ended too."""
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def kill(self) -> None:
        """End it whatever it does; a thread that waits for its answer gets `EOFError`."""
        self.process.kill()

    def bury(self) -> None:
        """Free what a killed process leaves. Blocks until it is gone."""
        self.process.wait()
        self.channel.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call(Generic[T]):
    """A function to be called in a process, and the form of what it returns."""

    form: Form[T]
    function: Callable[..., T] | None = None
    """None: the process begins by answering."""
    args: tuple[Any, ...] = ()
    descriptors: tuple[int, ...] = ()
    """Of which the function gets copies as its first arguments."""

    def made_in(self, process: _Process) -> T | MediaError | CallFailedError:
        """Return what came of it. Blocks. Raises what `receive_answer` does."""
        if self.function is not None:
            send_call(process.channel, self.function, self.args, self.descriptors)
        return receive_answer(process.channel, self.form)


class BoundedProcesses:
    """At most so many calls at a time, each in a process that stays for the next call.

    A call that times out or is cancelled costs its process, which is started again; no other call notices. Once it
    has initialized, a process is confined: see `pecia_workers.confinement`. Use it from one loop, on a thread that
    lives as long as the processes should: they die with it, being forked from a template that does.
    """

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., None],
        *initargs: Any,
        memory_bytes: int | None = None,
    ) -> None:
        """`memory_bytes`: address space of each process above what it has once initialized."""
        self.processes = processes
        self._initargs = (memory_bytes, initializer, initargs)
        self._template: Template | None = None
        self._free = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._stopped = False
        self._warned = False

    async def start(self) -> None:
        """Start the processes; returns when they answer. Raises `ProcessDiedError` if they cannot be initialized."""
        self._stopped = False
        calls = (self.call(_READY, bool, timeout=_START_TIMEOUT_S) for _ in range(self.processes))
        await asyncio.gather(*calls)

    async def stop(self) -> None:
        """End every call and process; callers get `asyncio.CancelledError`."""
        self._stopped = True
        idle, self._idle = self._idle, []
        for process in [*idle, *self._busy]:
            process.kill()
        for process in idle:
            await asyncio.to_thread(process.bury)
        if self._template:
            await asyncio.to_thread(self._template.stop)

    async def call(
        self,
        form: Form[T],
        function: Callable[..., T],
        *args: Any,
        timeout: float,  # noqa: ASYNC109  ends a process
        document: Path | None = None,
    ) -> T:
        """Return `function(*args)`, run in a process; of a document it gets the descriptor as its first argument.

        Raises `MediaError` if it does, `CallFailedError` if it raises anything else, `OSError` if the document cannot
        be opened, `TimeoutError` after `timeout` seconds of running, `ProcessDiedError` if the process ended or did
        not answer in this form.
        """
        async with self._free:
            with await _opened(document) as file:
                descriptors = (file.fileno(),) if file else ()
                call = _Call(form=form, function=function, args=args, descriptors=descriptors)
                process = await self._ready()
                answer = await self._ask(process, timeout, call)
            self._idle.append(process)
        if isinstance(answer, (MediaError, CallFailedError)):
            raise answer
        return answer

    async def _ready(self) -> _Process:
        """Return an idle process that is still there, else a new one that is ready."""
        while self._idle and not self._stopped:
            process = self._idle.pop()
            if process.is_idle:
                return process
            process.kill()
            process.bury()
        process = await self._launched()
        confined = await self._ask(process, _START_TIMEOUT_S, _Call(form=_READY))
        self._note(confined is True)
        return process

    async def _launched(self) -> _Process:
        """Return a new process; the first one waits for the template to import what all of them need."""
        if self._stopped:
            raise asyncio.CancelledError
        template = self._living_template()
        try:
            await asyncio.to_thread(template.run, imported, self._initargs)
            return _Process.launch(template, self._initargs)
        except TemplateDiedError:
            if self._stopped:
                raise asyncio.CancelledError from None
            raise ProcessDiedError("The process could not be started.") from None

    def _living_template(self) -> Template:
        if self._template and not self._template.alive:
            self._template.stop()
            self._template = None
        self._template = self._template or Template()
        return self._template

    def _note(self, confined: bool) -> None:
        if not confined and not self._warned:
            self._warned = True
            log.warning("processes_unconfined", reason="the kernel refuses seccomp", lost="no network")

    async def _ask(
        self, process: _Process, seconds: float, call: _Call[T]
    ) -> T | MediaError | CallFailedError:
        """Return the process's answer; a process that does not give one is ended and buried."""
        answering = asyncio.create_task(asyncio.to_thread(call.made_in, process))
        self._busy.add(process)
        if self._stopped:
            process.kill()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answering)
        except (EOFError, OSError, InvalidAnswerError) as error:
            await self._end(process, answering)
            if isinstance(error, TimeoutError):
                raise
            if self._stopped:
                raise asyncio.CancelledError from None
            raise ProcessDiedError("The process ended in the middle of the call.") from None
        except BaseException:
            await self._end(process, answering)
            raise
        finally:
            self._busy.discard(process)

    async def _end(self, process: _Process, answering: asyncio.Task[Any]) -> None:
        process.kill()
        await asyncio.wait([answering])  # at once: its socket has ended
        answering.exception()
        await asyncio.to_thread(process.bury)


async def _opened(document: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    if document is None:
        return nullcontext()
    return await asyncio.to_thread(document.open, "rb", buffering=0)


def _serve_at(descriptor: int, *initargs: Any) -> None:
    show_as("-m", __name__)
    serve(socket.socket(fileno=descriptor), *initargs)


def serve(channel: socket.socket, *initargs: Any) -> None:
    """Answer calls until the other end is closed. Runs in the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    confined = _initialize(*initargs)
    send_answer(channel, lambda: confined)
    while call := receive_call(channel):
        send_answer(channel, call)


def _initialize(
    memory_bytes: int | None, initializer: Callable[..., None], initargs: tuple[Any, ...]
) -> bool:
    """Make ready and give up what is not needed; return whether the kernel took it."""
    initializer(*initargs)
    if memory_bytes is not None:
        limit = _address_space() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return confine()


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
