"""A bounded number of processes for work that may hang, crash or eat memory, awaited from one loop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog

from pecia_workers.confinement import confine
from pecia_workers.template import Forked, Template, TemplateDiedError, imported, show_as
from pecia_workers.working import waiting

log = structlog.get_logger(__name__)

T = TypeVar("T")

_START_TIMEOUT_S = 120.0


class ProcessDiedError(Exception):
    """The process ended in the middle of this call; calls in other processes go on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """One process and a pipe that nobody else holds: when the process dies the pipe ends, whatever was half said."""

    process: Forked
    pipe: Connection

    @classmethod
    def launch(cls, template: Template, initargs: tuple[Any, ...]) -> Self:
        """Start it; once it is ready it says whether the kernel confines it. Raises `TemplateDiedError`."""
        ours, theirs = Pipe()
        with theirs:
            process = template.fork(_serve_at, *initargs, descriptors=[theirs.fileno()])
        return cls(process, ours)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a call; the pipe of one that has ended has ended too."""
        return not self.pipe.poll()

    def ask(self, function: Callable[..., Any] | None = None, args: tuple[Any, ...] = ()) -> tuple[bool, Any]:
        """Hand over a call, if any, and return whether it succeeded and what came back. Blocks.

        Raises `EOFError` or `OSError` if the process has ended.
        """
        if function is not None:
            self.pipe.send((function, args))
        answer: tuple[bool, Any] = self.pipe.recv()
        return answer

    def kill(self) -> None:
        """End it whatever it does; who waits for an answer gets `EOFError`."""
        self.process.kill()

    def bury(self) -> None:
        """Free what a killed process leaves. Blocks until it is gone."""
        self.process.wait()
        self.pipe.close()


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
        await asyncio.gather(*(self.call(os.getpid, timeout=_START_TIMEOUT_S) for _ in range(self.processes)))

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

    async def call(self, function: Callable[..., T], *args: Any, timeout: float) -> T:  # noqa: ASYNC109  ends a process
        """Return `function(*args)`, run in a process.

        Raises what it raises, `TimeoutError` after `timeout` seconds of running, `ProcessDiedError` if the process
        ended.
        """
        with waiting():
            await self._free.acquire()
        try:
            process = await self._ready()
            succeeded, answer = await self._ask(process, timeout, function, args)
            self._idle.append(process)
        finally:
            self._free.release()
        if succeeded:
            returned: T = answer
            return returned
        raise answer

    async def _ready(self) -> _Process:
        """Return an idle process that is still there, else a new one that is ready."""
        while self._idle and not self._stopped:
            process = self._idle.pop()
            if process.is_idle:
                return process
            process.kill()
            process.bury()
        process = await self._launched()
        _, confined = await self._ask(process, _START_TIMEOUT_S)
        self._note(confined)
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

    async def _ask(self, process: _Process, seconds: float, *call: Any) -> tuple[bool, Any]:
        """Return the process's answer; a process that does not give one is ended and buried."""
        answering = asyncio.create_task(asyncio.to_thread(process.ask, *call))
        self._busy.add(process)
        if self._stopped:
            process.kill()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answering)
        except (EOFError, OSError) as error:
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

    async def _end(self, process: _Process, answering: asyncio.Task[tuple[bool, Any]]) -> None:
        process.kill()
        await asyncio.wait([answering])  # at once: its pipe has ended
        answering.exception()
        await asyncio.to_thread(process.bury)


def _serve_at(descriptor: int, *initargs: Any) -> None:
    show_as("-m", __name__)
    serve(Connection(descriptor), *initargs)


def serve(pipe: Connection, *initargs: Any) -> None:
    """Answer calls until the other end is closed. Runs in the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    pipe.send((True, _initialize(*initargs)))
    with suppress(EOFError):
        while True:
            function, args = pipe.recv()
            pipe.send(_answer(function, args))


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*args)
    except Exception as error:  # noqa: BLE001  raised again where the call came from
        return False, error


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
