"""A bounded number of processes for work that may hang, crash or exhaust memory, awaited from one loop."""

import asyncio
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from pydantic import TypeAdapter

from pecia_workers.media import frames
from pecia_workers.media.pages import MediaError
from pecia_workers.media.turns import ALL_ALIKE, Call, PostponedError, Turn, Turns
from pecia_workers.processes.confinement import LARGEST_FILE, Guard, confine_calls, confine_files
from pecia_workers.processes.template import Forked, Template, TemplateDiedError, imported, show_as
from pecia_workers.protocol.parts import waiting

log = structlog.get_logger(__name__)

T = TypeVar("T")

_START_TIMEOUT_S = 120.0
_LOAD_TIMEOUT_S = 600.0
_STARTS = 3
"""Tries to start a process before the start counts as failed."""
_TEMPLATE_TIMEOUT_S = 15.0
"""Timeout for the template to fork a process or to reap a killed one: it takes milliseconds, unless it is stopped."""
_OPEN_FILES = 2**16
"""Open files allowed for this process: each page in flight is a memory with two descriptors."""
_READY = frames.plain(TypeAdapter(tuple[Guard, ...]))
"""Schema of a process's first answer: guards that the kernel lacks."""
_ALIVE = frames.plain(TypeAdapter(bool))
_KEPT = frozenset({"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "OMP_NUM_THREADS"})


class ProcessDiedError(Exception):
    """The process ended during this call; calls in other processes continue."""


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """One process and its socket, which closes with the process, even during an answer."""

    forked: Forked
    channel: socket.socket

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a call; an ended process has a closed socket."""
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def reap(self) -> None:
        """Kill it and free its resources. Blocks until it has ended."""
        self.forked.kill()
        self.forked.wait()
        self.channel.close()


class _EvictedError(Exception):
    """The call must start again in its turn, since others wait for its process."""


class _Places:
    """Places for calls, one for each process, assigned in the order of `Turns`."""

    def __init__(self, places: int, slow_s: float) -> None:
        self.turns = Turns(places, slow_s=slow_s)
        self._slow_s = slow_s
        self._entering: dict[Call, asyncio.Future[None]] = {}
        self._limits: dict[Call, asyncio.Timeout] = {}
        self._postponed: dict[Call, float] = {}

    @asynccontextmanager
    async def held(self, call: Call) -> AsyncIterator[None]:
        """Wait for a place and hold it for the block. Raises `PostponedError` or `_EvictedError`."""
        loop, look, answered = asyncio.get_running_loop(), None, False
        entering = self._entering[call] = loop.create_future()
        limit = self._limits[call] = asyncio.timeout(None)
        self.turns.offer(call)
        try:
            async with limit:
                self._review()
                with waiting():
                    await entering
                if self._slow_s < math.inf:
                    look = loop.call_later(self._slow_s, self._review)
                yield
            answered = True
        except TimeoutError:
            if not limit.expired():
                raise
            if call in self._postponed:
                raise PostponedError(self._postponed[call]) from None
            raise _EvictedError from None
        finally:
            if look:
                look.cancel()
            del self._entering[call], self._limits[call]
            self._postponed.pop(call, None)
            self.turns.withdraw(call, loop.time(), answered=answered)
            self._review()

    def _review(self) -> None:
        """Assign places, and withdraw those that `Turns` evicts."""
        now = asyncio.get_running_loop().time()
        for call in self.turns.start(now):
            if not self._entering[call].done():  # given up a moment ago, its task has not heard of it yet
                self._entering[call].set_result(None)
        while postponed := self.turns.postponed(now):
            call, seconds = postponed
            self._postponed[call] = seconds
            self._limits[call].reschedule(now)
        if evicted := self.turns.evicted(now):
            self._limits[evicted].reschedule(now)


class BoundedProcesses:
    """A bounded number of concurrent calls, each in a process that is kept for the next call.

    A call that times out or is cancelled ends its process, which is started again, without effect on other calls. After
    its initialization a process is confined: see `pecia_workers.processes.confinement`. To be used from one loop, on a
    thread that outlives the processes: they end with it, since their template does.
    """

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., None],
        *initargs: Any,
        memory_bytes: int | None = None,
        readable: Sequence[Path] = (),
        largest_file: int = LARGEST_FILE,
        environment: Mapping[str, str] | None = None,
        slow_s: float = math.inf,
    ) -> None:
        """`memory_bytes`: address space of each process in addition to that after initialization.

        `readable`: files and directories that it may open, beside `confinement.readable_places()`. `largest_file`:
        bytes that it may write to one file or memory. `environment`: variables in addition to `public_environment()`.
        `slow_s`: seconds from which a call may be evicted for others, as `Turns` decides.
        """
        self.processes = processes
        self._initargs = (memory_bytes, readable, largest_file, initializer, *initargs)
        self._environment = public_environment() | dict(environment or {})
        self._template: Template | None = None
        self._loads: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._loaded: Template | None = None
        self._places = _Places(processes, slow_s)
        # Two a process: one waits for its answer, one ends its predecessor; the loop's own threads may be busy.
        self._threads = ThreadPoolExecutor(2 * processes + 1, thread_name_prefix="processes")
        self._reaping: set[asyncio.Future[None]] = set()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._stopped = False
        self._missing: set[Guard] = set()
        """Guards that this machine's kernel lacks."""

    def bound_slow(self, most: int) -> None:
        """Limit slow calls, waiting and running: further ones raise `PostponedError`."""
        self._places.turns.most_slow = most

    async def load(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the template, so that all processes inherit its effects; also in any later template.

        A second call must be harmless. Raises the function's errors, and `ProcessDiedError`.
        """
        self._loads.append((function, args))
        await self._in_template(function, args, _LOAD_TIMEOUT_S)

    async def start(self) -> None:
        """Start the processes; returns when they answer. Raises `ProcessDiedError` if their initialization fails."""
        self._stopped = False
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))
        await asyncio.gather(*(self.ping() for _ in range(self.processes)))
        if self._missing:
            reason = "the kernel does not offer it"
            log.warning("processes_unconfined", missing=list(self._missing), reason=reason)

    async def ping(self) -> None:
        """Wait until a process answers. Raises `ProcessDiedError` or `TimeoutError` if none does."""
        await self.call(_ALIVE, bool, timeout=_START_TIMEOUT_S)

    async def stop(self) -> None:
        """End every call and process; callers get `asyncio.CancelledError`."""
        self._stopped = True
        idle, self._idle = self._idle, []
        for process in [*idle, *self._busy]:
            process.forked.kill()
        for process in idle:
            self._reap(process)
        if self._reaping:
            await asyncio.wait(self._reaping)
        if self._template:
            await self._in_thread(self._template.stop)

    async def call(
        self,
        form: frames.Form[T],
        function: Callable[..., T],
        *args: Any,
        timeout: float,  # noqa: ASYNC109  ends a process
        document: int | None = None,
        turn: Turn = ALL_ALIKE,
    ) -> T:
        """Return `function(*args)`, run in a process, which gets a copy of a document's descriptor as first argument.

        Raises the function's `MediaError`, `CallFailedError` for its other errors, `TimeoutError` after `timeout`
        seconds of running, `ProcessDiedError` if the process ended or its answer was invalid, and `PostponedError`.
        """
        call = Call(turn)
        while True:
            try:
                async with self._places.held(call):
                    with waiting():
                        process = await self._ready()
                    answer = await self._ask(process, timeout, form, function, args, document)
                    self._idle.append(process)
                break
            except _EvictedError:
                log.info("call_evicted")
        if isinstance(answer, (MediaError, frames.CallFailedError)):
            raise answer
        return answer

    async def _ready(self) -> _Process:
        """Return an idle live process, else a new ready one."""
        while self._idle and not self._stopped:
            process = self._idle.pop()
            if process.is_idle:
                return process
            self._reap(process)
        for _ in range(_STARTS):
            if self._stopped:
                raise asyncio.CancelledError
            with suppress(TemplateDiedError, ProcessDiedError):  # no fault of the function to be called
                return await self._started()
        raise self._not_started()

    async def _started(self) -> _Process:
        template = self._template
        if template is None or not template.alive or self._loaded is not template:
            # The first one waits for the template to import what all of them need.
            template = await self._in_template(imported, (self._initargs,), _START_TIMEOUT_S)
            for function, args in self._loads:
                await self._in_template(function, args, _LOAD_TIMEOUT_S)
            self._loaded = template
        starting = self._in_thread(self._start_process, template)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._reap_unwanted)
            raise
        answer = await self._ask(process, _START_TIMEOUT_S, _READY)  # whether the kernel confines it
        self._missing.update(answer if isinstance(answer, tuple) else Guard)
        return process

    def _start_process(self, template: Template) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                return _Process(template.fork(_serve, *self._initargs, descriptors=[theirs.fileno()]), ours)
        except TemplateDiedError:
            ours.close()
            raise

    def _reap_unwanted(self, starting: asyncio.Future[_Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._reap(starting.result())

    def _reap(self, process: _Process) -> asyncio.Future[None]:
        """Kill a process; the returned future completes when it has ended."""
        reaping = self._in_thread(process.reap)
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)
        return reaping

    async def _in_template(
        self, function: Callable[..., object], args: tuple[Any, ...], timeout_s: float
    ) -> Template:
        former = template = self._template
        if template is None or not template.alive:
            # On this thread: a template ends with the thread that has made it.
            template = self._template = Template(environment=self._environment, timeout=_TEMPLATE_TIMEOUT_S)
            if former:
                await self._in_thread(former.stop)
        try:
            await self._in_thread(partial(template.run, timeout=timeout_s), function, *args)
        except TemplateDiedError:
            raise self._not_started() from None
        return template

    def _in_thread(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def _not_started(self) -> BaseException:
        if self._stopped:
            return asyncio.CancelledError()
        return ProcessDiedError("The process could not be started.")

    async def _ask(
        self, process: _Process, seconds: float, form: frames.Form[T], *call: Any
    ) -> T | MediaError | frames.CallFailedError:
        """Return the process's answer to a call, or its first one; a process without an answer is killed and reaped."""

        def answered() -> T | MediaError | frames.CallFailedError:
            if call:
                frames.send_call(process.channel, *call)
            return frames.receive_answer(process.channel, form)

        answering = self._in_thread(answered)
        self._busy.add(process)
        if self._stopped:
            process.forked.kill()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answering)
        except (EOFError, OSError, frames.InvalidAnswerError) as error:
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

    async def _end(self, process: _Process, answering: asyncio.Future[Any]) -> None:
        process.forked.kill()
        await asyncio.wait([answering])  # at once: its socket has ended
        answering.exception()
        await asyncio.wait([self._reap(process)])


def public_environment() -> dict[str, str]:
    """Return the variables of this environment that a confined process needs, without secrets."""
    return {name: os.environ[name] for name in os.environ if name in _KEPT or name.startswith("PYTHON")}


def _serve(
    descriptor: int,
    memory_bytes: int | None,
    readable: Sequence[Path],
    largest_file: int,
    initializer: Callable[..., None],
    *initargs: Any,
) -> None:
    """Initialize, silence libraries, drop privileges, then answer calls until the other end is closed.

    Runs in the process. Its first answer names the guards that the kernel lacks.
    """
    show_as("-m", __name__)
    channel = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process group; the worker decides
    with Path(os.devnull).open("wb") as nowhere, Path("/proc/self/statm").open("rb") as statm:
        guards = {Guard.LANDLOCK: confine_files(readable)}  # first, for it binds no thread that runs already
        initializer(*initargs)
        if memory_bytes is not None:
            limit = int(statm.read().split()[0]) * resource.getpagesize() + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for stream in (sys.__stdout__, sys.__stderr__):  # what libraries print of a file is for no log
            if stream is not None:
                os.dup2(nowhere.fileno(), stream.fileno())
    guards[Guard.SECCOMP] = confine_calls(largest_file)
    frames.send_answer(channel, lambda: tuple(guard for guard, holds in guards.items() if not holds))
    while call := frames.receive_call(channel):
        frames.send_answer(channel, call)
        del call  # and the memory that came with it
