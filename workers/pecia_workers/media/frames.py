"""Messages between a process and its confined child processes: pickled calls, and typed answers.

A process that opens an untrusted file may be taken over by it, so its answers are never unpickled. An answer is a
length, a JSON header of the form that the caller expects, and the descriptor of a sealed memory if that form has one.
Each is checked before memory is allocated for the next.

Arrays are passed in sealed memory in both directions, and the memory of an answer is passed on with the next call: a
page's pixels are written once, by the process that decoded it. Source: memfd_create(2), "File sealing" in fcntl(2).
"""

import dataclasses
import fcntl
import math
import mmap
import os
import pickle
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from pydantic_core import to_json
from typing_extensions import TypedDict

from pecia_schemas.failures import FailureCode
from pecia_workers.media.pages import MediaError

T = TypeVar("T")

try:
    from blake3 import blake3 as _hash  # comes with vLLM; takes half of the time
except ImportError:
    from hashlib import sha256 as _hash

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
ALIGNMENT: Final = 64
"""Alignment of parts, in bytes, for reading numbers of several bytes in place."""


class InvalidMemoryError(ValueError):
    """A process did not send a sealed memory of an allowed size."""


class Memory(mmap.mmap):
    """A sealed memory, mapped for reading; its descriptor is closed with it."""

    descriptor: int
    digests: dict[tuple[int, int], str]
    """Digests of its parts, by offset and length."""

    @classmethod
    def of(cls, descriptor: int, most: int) -> Self:
        """Map a memory of at most `most` bytes, which then owns its descriptor. Raises `InvalidMemoryError`."""
        try:
            memory = cls(descriptor, _size(descriptor, most), mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(descriptor)
            raise
        memory.descriptor, memory.digests = descriptor, {}
        weakref.finalize(memory, os.close, descriptor)
        return memory


def digest(array: NDArray[np.uint8]) -> str:
    """Return a hash of an array's bytes, computed once for each part of a sealed memory.

    Computed by the requesting process, since a process that opened an untrusted file could forge it.
    """
    content = np.ascontiguousarray(array).data
    memory = _memory_of(content)
    digests = {} if memory is None else memory.digests
    place = (0 if memory is None else _offset(content, memory), content.nbytes)
    if place not in digests:
        digests[place] = str(_hash(content).hexdigest())
    return digests[place]


def _memory_of(content: memoryview) -> Memory | None:
    """Return the sealed memory that contains an array's bytes, or None if the process owns them."""
    owner: Any = content.obj
    while owner is not None and not isinstance(owner, Memory):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


def _offset(content: memoryview, memory: Memory) -> int:
    at, start = (np.frombuffer(one, np.uint8).ctypes.data for one in (content, memory))
    return int(at - start)


def sealed(parts: Iterable[memoryview]) -> int:
    """Copy these parts into sealed memory; return its descriptor, which the caller must close."""
    descriptor = os.memfd_create("pecia", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        at = 0
        for part in parts:
            left = part.cast("B") if part.nbytes else memoryview(b"")
            while left:
                count = os.pwrite(descriptor, left, at)
                left, at = left[count:], at + count
            at = aligned(at)
        os.ftruncate(descriptor, at)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mapped(descriptor: int, most: int) -> memoryview:
    """Return a sealed memory's bytes as a private copy, and close its descriptor. Raises `InvalidMemoryError`."""
    try:
        size = _size(descriptor, most)
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(descriptor)


def _size(descriptor: int, most: int) -> int:
    """Return the bytes of a sealed memory. Raises `InvalidMemoryError`."""
    try:
        is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # it is no memory that can be sealed
        is_sealed = False
    size = os.fstat(descriptor).st_size
    if not is_sealed or not 0 < size <= most:
        raise InvalidMemoryError
    return size


def aligned(size: int) -> int:
    """Return the offset of the next part."""
    return -(-size // ALIGNMENT) * ALIGNMENT


STRICT = with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
"""Decorator of a header's `TypedDict`."""

_HEAD = struct.Struct("!?I")
"""Whether the call returned, and the length of the JSON header."""
_MOST_HEADER = 16 * 1024**2
_MOST_DESCRIPTORS = 4
_LENGTH = struct.Struct("!Q")
_SMALL = 4096


class InvalidAnswerError(Exception):
    """The process did not send a valid answer to its call."""


class CallFailedError(Exception):
    """The call raised an unexpected exception in a process; has the name of its class only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """Schema of a call's answer, as its caller expects it."""

    header: TypeAdapter[Any]
    build: Callable[[Any], T]
    """Builds the result from the header. Raises `ValueError` if that is inconsistent."""
    most: int = 0
    """Most bytes of the sealed memory that follows; 0: none follows."""
    array: str = ""
    """The field whose bytes are in it, for which the header has their shape; empty: `build` gets only the memory."""


def plain(header: TypeAdapter[T]) -> Form[T]:
    """Return the schema of an answer without sealed memory."""
    return Form(header=header, build=lambda content: content)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed memory, returned by a call: its descriptor is closed when it has been sent."""

    descriptor: int


@STRICT
class _Failure(TypedDict):
    code: FailureCode | None
    """Failure code; None if it was no `MediaError`."""
    found: Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,300}$")]


_FAILURE = TypeAdapter(_Failure)


def send_call(
    channel: socket.socket,
    function: Callable[..., object],
    args: tuple[object, ...],
    document: int | None = None,
) -> None:
    """Send a call to a process, which gets a copy of the document's descriptor as the first argument.

    Arrays arrive read-only in sealed memory: that of an earlier answer, if it contains all of them.
    """
    arrays: list[memoryview] = []

    def stays(array: pickle.PickleBuffer) -> bool:
        content = array.raw()
        is_small = content.nbytes < _SMALL
        if not is_small:
            arrays.append(content)
        return is_small

    call = pickle.dumps((function, args), protocol=5, buffer_callback=stays)
    memories = {_memory_of(array) for array in arrays}
    memory = memories.pop() if len(memories) == 1 else None
    if memory is not None:
        starts = [_offset(array, memory) for array in arrays]
    else:
        starts = [0, *accumulate(aligned(array.nbytes) for array in arrays)]
        memory = Memory.of(sealed(arrays), sys.maxsize) if arrays else None
    descriptors = [] if document is None else [document]
    socket.send_fds(channel, [b"."], descriptors + ([memory.descriptor] if memory else []))
    places = [(at, array.nbytes) for at, array in zip(starts, arrays, strict=False)]
    content = pickle.dumps((places, call), protocol=5)
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive_call(channel: socket.socket) -> Callable[[], Any] | None:
    """Return the next call of the process that started this one; None if that has ended."""
    mark, descriptors, _, _ = socket.recv_fds(channel, 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if not mark:
        return None
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    places, call = pickle.loads(_exactly(channel, length))  # noqa: S301  of the process that started us  # nosec B301
    memory = memoryview(Memory.of(descriptors.pop(), sys.maxsize) if places else b"")
    arrays = [memory[at : at + size] for at, size in places]
    function, args = pickle.loads(call, buffers=arrays)  # noqa: S301  as above  # nosec B301
    return lambda: function(*descriptors, *args)


def send_answer(channel: socket.socket, call: Callable[[], object]) -> None:
    """Make the call, and send what it returns or why it fails; an array of a dataclass follows in sealed memory."""
    content: Any
    memory: Sealed | None = None
    try:
        content = call()
        if isinstance(content, Sealed):
            content, memory = True, content
        elif dataclasses.is_dataclass(content) and not isinstance(content, type):
            content = {field.name: getattr(content, field.name) for field in dataclasses.fields(content)}
            for name, part in content.items():
                if isinstance(part, (bytes, np.ndarray)):
                    array = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
                    content[name] = array.shape
                    memory = Sealed(sealed([np.ascontiguousarray(array).data]))
    except MediaError as error:
        _send(channel, False, {"code": error.code, "found": error.found})
    except Exception as error:  # noqa: BLE001  the caller learns what it was
        _send(channel, False, {"code": None, "found": type(error).__name__})
    else:
        _send(channel, True, content)
        if memory:
            socket.send_fds(channel, [b"."], [memory.descriptor])
            os.close(memory.descriptor)


def receive_answer(channel: socket.socket, form: Form[T]) -> T | MediaError | CallFailedError:
    """Return a call's result or failure. Raises `InvalidAnswerError`, `EOFError`, `OSError`."""
    returned, length = _HEAD.unpack(_exactly(channel, _HEAD.size))
    if length > _MOST_HEADER:
        raise InvalidAnswerError
    header = _exactly(channel, length)
    try:
        if not returned:
            failure = _FAILURE.validate_json(header, strict=True)
            code, found = failure["code"], failure["found"]
            return CallFailedError(found) if code is None else MediaError(code, found)
        content = form.header.validate_json(header, strict=True)
        if form.array:
            shape = content[form.array]
            if (size := math.prod(shape)) > form.most:
                raise InvalidMemoryError
            memory = Memory.of(_descriptor(channel), aligned(form.most))
            content[form.array] = np.frombuffer(memory, np.uint8, size).reshape(shape)
        elif form.most:
            content = mapped(_descriptor(channel), form.most)
        return form.build(content)
    except ValueError:  # which may quote what came
        raise InvalidAnswerError from None


def _descriptor(channel: socket.socket) -> int:
    mark, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not mark:
        raise EOFError
    if not descriptors:
        raise InvalidMemoryError
    return descriptors[0]


def _send(channel: socket.socket, returned: bool, content: object) -> None:
    header = to_json(content)
    channel.sendall(_HEAD.pack(returned, len(header)) + header)


def _exactly(channel: socket.socket, size: int) -> bytearray:
    """Return the next bytes. Raises `EOFError` if they end before."""
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        count = channel.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return content
