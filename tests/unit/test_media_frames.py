"""What a process that a document took over may answer: the parent takes a valid answer, and nothing else."""

import fcntl
import os
import pickle
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from pecia_schemas.blocks import Block, Box, Doubt, Line
from pecia_schemas.failures import FailureCode
from pecia_workers.media import MediaError, PageImage
from pecia_workers.media.frames import (
    ALIGNMENT,
    STRICT,
    CallFailedError,
    Form,
    InvalidAnswerError,
    Sealed,
    digest,
    plain,
    receive_answer,
    receive_call,
    sealed,
    send_answer,
    send_call,
)


@STRICT
class Header(TypedDict):
    pixels: tuple[int, int, Literal[3]]
    rotation: int
    skew: float
    scale: float
    blocks: tuple[Block, ...]
    doubts: tuple[Doubt, ...]
    pieces: tuple[Line, ...]
    unread: tuple[Box, ...]
    barcodes: tuple[object, ...]
    attachments: int
    witness: tuple[Block, ...]
    blank: bool


NUMBER = plain(TypeAdapter(int))
PAGE = Form(header=TypeAdapter(Header), build=lambda page: PageImage(**page), array="pixels", most=3_000_000)
HEAD = struct.Struct("!?I")
VALID = (
    b'{"pixels":[1,1,3],"rotation":0,"skew":0.0,"scale":1.0,"blocks":[],"doubts":[],"pieces":[],"unread":[],'
    b'"barcodes":[],"attachments":0,"witness":[],"blank":false}'
)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


@contextmanager
def said(content: bytes) -> Iterator[socket.socket]:
    """Yield the parent's end of a socket into which a process has written, and ended."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(content)
        yield ours


def answer_of(call: Callable[[], object], form: Form[Any]) -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=send_answer, args=(theirs, call))
        sending.start()
        answer = receive_answer(ours, form)
        sending.join()
        return answer


def frame(header: bytes, returned: bool = True) -> bytes:
    return HEAD.pack(returned, len(header)) + header


def test_pixels_arrive_as_they_were() -> None:
    pixels = np.arange(30 * 20 * 3, dtype=np.uint8).reshape(30, 20, 3)[:, ::-1]
    page = answer_of(lambda: PageImage(pixels=pixels, rotation=90), PAGE)
    assert (page.pixels == pixels).all()
    assert (page.rotation, page.skew, page.blank) == (90, 0.0, False)


def called_with(*arrays: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], ...]:
    """Return the arrays as a process gets them that is called with them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_call(ours, tuple, (arrays,))
        call = receive_call(theirs)
        assert call
        return tuple(call())


def inode_under(array: NDArray[np.uint8]) -> int:
    """Return the number of the file that is mapped where an array lies; 0: the memory is the process's own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        start, end = (int(one, 16) for one in span.split("-"))
        if start <= array.ctypes.data < end:
            return int(inode)
    return 0


def drawn(frames: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 255, (frames, 90, 70, 3), dtype=np.uint8)


def test_pixels_of_an_answer_go_on_with_the_next_call_in_the_same_memory() -> None:
    page = answer_of(lambda: PageImage(pixels=drawn()[0]), PAGE)
    (arrived,) = called_with(page.pixels)
    assert inode_under(arrived) == inode_under(page.pixels) > 0
    assert np.array_equal(arrived, page.pixels)
    assert not arrived.flags.writeable


@pytest.mark.parametrize("lay", ["one memory", "two memories", "own memory", "both", "parts", "small"])
def test_arrays_arrive_as_they_were_wherever_they_lie(lay: str) -> None:
    clip = answer_of(lambda: PageImage(pixels=drawn().reshape(270, 70, 3)), PAGE).pixels.reshape(3, 90, 70, 3)
    other = answer_of(lambda: PageImage(pixels=drawn()[1]), PAGE).pixels
    arrays = {
        "one memory": (clip[2], clip[0]),
        "two memories": (clip[1], other),
        "own memory": tuple(drawn()),
        "both": (drawn()[0], clip[0]),
        "parts": (clip[0, ::2], clip[1, :, ::-1]),
        "small": (clip[0], drawn()[0, :2, :2]),
    }[lay]

    arrived = called_with(*arrays)

    assert all(map(np.array_equal, arrived, arrays))


def test_the_same_bytes_go_by_the_same_digest_wherever_they_lie() -> None:
    clip = answer_of(lambda: PageImage(pixels=drawn().reshape(270, 70, 3)), PAGE).pixels.reshape(3, 90, 70, 3)
    assert [digest(one) for one in clip] == [digest(one) for one in drawn()]
    assert len({digest(one) for one in (*clip, clip[0, 1:], clip[0, :-1])}) == 5


def test_a_memory_that_no_array_lies_in_any_more_is_freed() -> None:
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    page = answer_of(lambda: PageImage(pixels=drawn()[0]), PAGE)
    called_with(page.pixels, *drawn())
    assert len(list(open_files.iterdir())) > before
    del page
    assert len(list(open_files.iterdir())) == before


def test_a_page_larger_than_its_memory_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame(VALID.replace(b"[1,1,3]", b"[9,9,3]")))
        socket.send_fds(theirs, [b"."], [sealed([memoryview(bytes(100))])])
        with pytest.raises(InvalidAnswerError):
            receive_answer(ours, PAGE)


def test_a_failure_arrives_by_its_code() -> None:
    def fail() -> None:
        raise MediaError(FailureCode.DAMAGED, "The PDF cannot be read.")

    failure = answer_of(fail, PAGE)

    assert isinstance(failure, MediaError)
    assert (failure.code, failure.found) == (FailureCode.DAMAGED, "The PDF cannot be read.")


def test_of_any_other_error_the_class_alone_arrives() -> None:
    failure = answer_of(lambda: int("the name of a patient"), NUMBER)
    assert isinstance(failure, CallFailedError)
    assert str(failure) == "ValueError"


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Bomb()),
        frame(pickle.dumps(Bomb())),
        frame(pickle.dumps(Bomb()), returned=False),
        HEAD.pack(True, 2**32 - 1),
        frame(VALID.replace(b"[1,1,3]", b"[1000000,1000000,3]")),
        frame(VALID.replace(b"[1,1,3]", b"[-1,-1,3]") + bytes(3)),
        frame(VALID.replace(b"[1,1,3]", b"[1,1,4]") + bytes(4)),
        frame(VALID.replace(b"[1,1,3]", b"[9,9,3]")) + bytes(3),
        frame(VALID.replace(b"0.0", b"NaN")) + bytes(3),
        frame(VALID.replace(b"}", b',"path":"/etc"}')) + bytes(3),
        frame(b'{"code":"no such code","found":"x"}', returned=False),
        frame(b'{"code":null,"found":"two\\nlines"}', returned=False),
    ],
)
def test_what_is_no_answer_is_refused_without_its_memory(content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with said(content) as channel, pytest.raises((InvalidAnswerError, EOFError)):
        receive_answer(channel, PAGE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


MEMORY = Form(header=TypeAdapter(bool), build=bytes, most=4096)


def test_a_sealed_memory_arrives_by_its_descriptor_part_after_part() -> None:
    parts = [memoryview(b"prompt"), memoryview(b""), np.arange(3, dtype=np.uint16).data]
    content = answer_of(lambda: Sealed(sealed(parts)), MEMORY)
    assert content[:6] == b"prompt"
    assert content[ALIGNMENT : ALIGNMENT + 6] == parts[2].tobytes()
    assert len(content) == 2 * ALIGNMENT


def unsealed() -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, 64)
    return descriptor


def half_sealed() -> int:
    descriptor = unsealed()
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


@pytest.mark.parametrize(
    "memory",
    [
        unsealed,
        half_sealed,
        lambda: sealed([]),
        lambda: sealed([memoryview(bytes(4097))]),
        lambda: os.open(os.devnull, os.O_RDONLY),
        lambda: os.open(__file__, os.O_RDONLY),
    ],
    ids=["not sealed", "can be written to", "empty", "too large", "a device", "a file"],
)
def test_what_is_no_sealed_memory_is_not_mapped(memory: Callable[[], int]) -> None:
    with pytest.raises(InvalidAnswerError):
        answer_of(lambda: Sealed(memory()), MEMORY)


@pytest.mark.parametrize(("sent", "error"), [(b"", EOFError), (b".", InvalidAnswerError)])
def test_a_memory_that_does_not_come_is_none(sent: bytes, error: type[Exception]) -> None:
    with said(frame(b"true") + sent) as channel, pytest.raises(error):
        receive_answer(channel, MEMORY)


@given(st.binary(max_size=300) | st.builds(frame, st.binary(max_size=300), st.booleans()))
@example(frame(VALID) + bytes(3))
def test_no_bytes_do_more_than_fail(content: bytes) -> None:
    with said(content) as channel:
        try:
            answer = receive_answer(channel, PAGE)
        except (InvalidAnswerError, EOFError):
            return
    assert isinstance(answer, (PageImage, MediaError, CallFailedError))
