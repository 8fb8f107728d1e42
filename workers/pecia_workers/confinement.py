"""What a process gives up before it opens a stranger's file: the network, programs, other processes, large files.

By a seccomp filter (Linux, x86-64 and arm64), which threads and children inherit and nobody can take off again. What it
does not take away is the right to read the files that the account may read.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import platform
import resource
import struct
import sys
from dataclasses import dataclass

_SET_NO_NEW_PRIVS = 38
_MODE_FILTER = 1
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC: libraries started threads when they were imported

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # classic BPF
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # in struct seccomp_data
_ALLOW, _REFUSE, _KILL = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x8000_0000
_FOREIGN_NUMBERS = 0x4000_0000  # x32 calls on x86-64; nothing there on arm64

_LARGEST_FILE = 64 * 1024**2
"""In bytes. Not 0: a log to which a library complains may be a file."""

_ANSWER_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """A machine's own number (AUDIT_ARCH_*), that of seccomp(2), and those of the calls that are refused."""

    audit: int
    seccomp: int
    refused: tuple[int, ...]


# socket, execve, execveat, ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, and io_uring_setup, which opens
# sockets too.
_ARCHITECTURES = {
    "x86_64": _Architecture(audit=0xC000_003E, seccomp=317, refused=(41, 59, 322, 101, 310, 311, 438, 425)),
    "aarch64": _Architecture(
        audit=0xC000_00B7, seccomp=277, refused=(198, 221, 281, 117, 270, 271, 438, 425)
    ),
}


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def forbid_core_files() -> None:
    """Let no crash of this process, or of those it starts, write its memory to disk: there are pages in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def confine() -> bool:
    """Let this process open no socket, start no program, look into no other process and write no large file.

    Return whether the kernel took the filter; the limits hold in any case.
    """
    forbid_core_files()
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    architecture = _ARCHITECTURES.get(platform.machine()) if sys.platform == "linux" else None
    return architecture is not None and _install(architecture)


def kernel_confines() -> bool:
    """Return whether `confine` works on this machine; tried in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=_try, daemon=True)
    process.start()
    process.join(_ANSWER_S)
    return process.exitcode == 0


def _try() -> None:
    sys.exit(not confine())


def _install(architecture: _Architecture) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    filter_ = _filter(architecture)
    program = _Program(len(filter_) // 8, filter_)
    return bool(libc.syscall(architecture.seccomp, _MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0)


def _filter(architecture: _Architecture) -> bytes:
    refused = architecture.refused
    to_refusal = [
        len(refused) - n for n in range(len(refused))
    ]  # over the checks that are left and the return
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE_AT),
            _instruction(_JUMP_IF_EQUAL, architecture.audit, 1, 0),
            _instruction(_RETURN, _KILL),
            _instruction(_LOAD, _NUMBER_AT),
            _instruction(_JUMP_IF_AT_LEAST, _FOREIGN_NUMBERS, len(refused) + 1, 0),
            *(
                _instruction(_JUMP_IF_EQUAL, number, jump, 0)
                for number, jump in zip(refused, to_refusal, strict=True)
            ),
            _instruction(_RETURN, _ALLOW),
            _instruction(_RETURN, _REFUSE),
        ]
    )


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)
