"""What passes between a process and the confined ones that it has started: pickled calls down, typed frames up.

A process that opens an untrusted file may be taken over by it, so nothing that it sends is unpickled. An answer is a
length, a JSON header of the form that the caller expects, and raw bytes whose number follows from that header, or the
descriptor of a sealed memory. Each is checked before memory is allocated for what comes next.

Source of the sealing: memfd_create(2) and "File sealing" in fcntl(2).
"""

from __future__ import annotations

import dataclasses
import fcntl
import math
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import to_json
from typing_extensions import TypedDict

from pecia_schemas.failures import FailureCode
from pecia_workers.media.limits import MediaError

T = TypeVar("T")

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
ALIGNMENT: Final = 64
"""At a multiple of so many bytes every part begins: what reads numbers of several bytes in place wants that."""


class InvalidMemoryError(ValueError):
    """What a process sent is no sealed memory of a size that is allowed."""


def sealed(parts: Iterable[memoryview]) -> int:
    """Return the descriptor of a copy of these bytes, one part after another; it is the caller's to close."""
    descriptor = os.memfd_create("pecia", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        at = 0
        for part in parts:
            _write(descriptor, part, at)
            at = aligned(at + part.nbytes)
        os.ftruncate(descriptor, at)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mapped(descriptor: int, most: int) -> memoryview:
    """Return the bytes of a sealed memory, `most` at most, and close its descriptor.

    Writes to it go to a private copy. Raises `InvalidMemoryError`.
    """
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise InvalidMemoryError
        size = os.fstat(descriptor).st_size
        if not 0 < size <= most:
            raise InvalidMemoryError
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    except OSError:
        raise InvalidMemoryError from None  # it is no memory that can be sealed
    finally:
        os.close(descriptor)


def aligned(size: int) -> int:
    """Return where the next part begins."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write(descriptor: int, part: memoryview, at: int) -> None:
    left = part.cast("B") if part.nbytes else memoryview(b"")
    while left:
        count = os.pwrite(descriptor, left, at)
        left, at = left[count:], at + count


STRICT = with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
"""What decorates the `TypedDict` of a header."""

_HEAD = struct.Struct("!?I")
"""Whether the call returned, and the length of the JSON header."""
_MOST_HEADER = 16 * 1024**2
_MOST_DESCRIPTORS = 4
_LENGTH = struct.Struct("!Q")


class InvalidAnswerError(Exception):
    """What came from the process is no answer to its call."""


class CallFailedError(Exception):
    """The call raised what no caller expects, in a process; says the name of its class alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """What a call returns, as its caller expects it."""

    header: TypeAdapter[Any]
    build: Callable[[Any], T]
    """Makes it of the header's content. Raises `ValueError` if that contradicts itself."""
    raw: str = ""
    """The field whose bytes follow the header, which says their shape in its place."""
    most_raw: int = 0
    """Bytes that it may have at most."""
    most_sealed: int = 0
    """The same of a sealed memory; if it is given, that is all there is, and what `build` gets is its bytes."""


def plain(header: TypeAdapter[T]) -> Form[T]:
    """Return the form of what is all header."""
    return Form(header=header, build=lambda content: content)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed memory, returned by a call: its descriptor is closed when it has been sent."""

    descriptor: int


@STRICT
class _Failure(TypedDict):
    code: FailureCode | None
    """None: it was no `MediaError`."""
    found: Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,300}$")]


_FAILURE = TypeAdapter(_Failure)


def send_call(
    channel: socket.socket,
    function: Callable[..., object],
    args: tuple[object, ...],
    descriptors: Sequence[int] = (),
) -> None:
    """Send a call to a process, which gets its own copies of the descriptors as the first arguments."""
    call = pickle.dumps((function, args), protocol=5)
    socket.send_fds(channel, [b"."], descriptors)
    channel.sendall(_LENGTH.pack(len(call)))
    channel.sendall(call)


def receive_call(channel: socket.socket) -> Callable[[], Any] | None:
    """Return the next call of the process that started this one; None if that has ended."""
    mark, descriptors, _, _ = socket.recv_fds(channel, 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if not mark:
        return None
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    function, args = pickle.loads(_exactly(channel, length))  # noqa: S301  of the process that started us  # nosec B301
    return lambda: function(*descriptors, *args)


def send_answer(channel: socket.socket, call: Callable[[], object]) -> None:
    """Make the call, and send what it returns or why it fails."""
    try:
        value = call()
        content, raw = (True, memoryview(b"")) if isinstance(value, Sealed) else _apart(value)
    except MediaError as error:
        _send(channel, False, {"code": error.code, "found": error.found})
    except Exception as error:  # noqa: BLE001  the caller learns what it was
        _send(channel, False, {"code": None, "found": type(error).__name__})
    else:
        _send(channel, True, content)
        channel.sendall(raw)
        if isinstance(value, Sealed):
            socket.send_fds(channel, [b"."], [value.descriptor])
            os.close(value.descriptor)


def receive_answer(channel: socket.socket, form: Form[T]) -> T | MediaError | CallFailedError:
    """Return what a call returned, or why it failed.

    Raises `InvalidAnswerError`; `EOFError` or `OSError` if the process has ended.
    """
    returned, length = _HEAD.unpack(_exactly(channel, _HEAD.size))
    if length > _MOST_HEADER:
        raise InvalidAnswerError
    header = _exactly(channel, length)
    if not returned:
        failure = _validated(_FAILURE, header)
        code, found = failure["code"], failure["found"]
        return CallFailedError(found) if code is None else MediaError(code, found)
    content = _validated(form.header, header)
    if form.raw:
        shape = content[form.raw]
        size = math.prod(shape)
        if size > form.most_raw:
            raise InvalidAnswerError
        content[form.raw] = np.frombuffer(_exactly(channel, size), dtype=np.uint8).reshape(shape)
    try:
        return form.build(_sealed(channel, form.most_sealed) if form.most_sealed else content)
    except ValueError:
        raise InvalidAnswerError from None


def _sealed(channel: socket.socket, most: int) -> memoryview:
    mark, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not mark:
        raise EOFError
    if not descriptors:
        raise InvalidMemoryError
    return mapped(descriptors[0], most)


def _validated(adapter: TypeAdapter[Any], header: bytearray) -> Any:
    try:
        return adapter.validate_json(header, strict=True)
    except ValidationError:
        raise InvalidAnswerError from None  # the error quotes what came


def _apart(value: object) -> tuple[object, memoryview]:
    """Return what the header says of a value, and the bytes that follow it."""
    raw = memoryview(b"")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value, raw
    content = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for name, part in content.items():
        if isinstance(part, (bytes, np.ndarray)):
            whole = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else np.ascontiguousarray(part)
            content[name], raw = whole.shape, whole.reshape(-1).data
    return content, raw


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
