"""Confinement of processes that open untrusted files: no network, no other processes, no files except code and fonts.

Two parts of the Linux kernel enforce it for the process and its threads, irrevocably. Landlock (5.13
and later) leaves code and fonts to be read (`readable_places`); a document comes as an open descriptor. A seccomp
filter (x86-64 and arm64) refuses system calls, among them all that open a file for writing.
"""

import ctypes
import errno
import multiprocessing
import os
import platform
import re
import resource
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

_SET_NO_NEW_PRIVS = 38
_MODE_FILTER = 1
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC: libraries started threads when they were initialized

# Classic BPF.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data, of 8 bytes for each argument
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_REFUSE, _NO_SUCH_CALL = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_FOREIGN_NUMBERS = 0x4000_0000  # x32 calls on x86-64; nothing there on arm64

_MACHINES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}
"""AUDIT_ARCH_*, and the place of a machine's numbers below."""
_SECCOMP = (317, 277)

# Each by its number on x86-64 and on arm64, where older calls do not exist (None).
_REFUSED: dict[str, tuple[int, int | None]] = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),  # opens sockets and files too
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "shmat": (30, 196),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "creat": (85, None),
    "truncate": (76, 45),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "link": (86, None),
    "linkat": (265, 37),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
_UNKNOWN = (435, 437)
"""clone3 and openat2, whose arguments a filter cannot inspect: libraries fall back on clone and openat."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# The number of each, which argument, and its bits that are refused.
_BITS_REFUSED = {
    "open": ((2, None), 1, _WRITING),
    "openat": ((257, 56), 2, _WRITING),
    "prlimit64": ((302, 261), 0, 0xFFFF_FFFF),  # of another process; 0 is this one
}
_CLONE, _CLONE_THREAD = (56, 220), 0x0001_0000

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Landlock, on every machine
_GET_VERSION, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file access rights by version of Landlock; later versions have 16 or more."""

_READABLE = (
    "/etc/ld.so.cache",
    *("/usr/share/fonts", "/usr/local/share/fonts", "/usr/share/X11/fonts"),  # for PDFs that bring none
    *("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/sys/devices", "/sys/bus/pci"),
)
_LIBRARY = re.compile(r" (/.+)/[^/]+\.so(\.[^/]*)?$")  # at the end of a line of /proc/PID/maps

LARGEST_FILE = 64 * 1024**2
"""Default limit, in bytes, for writes of a confined process to one open file."""
_ANSWER_S = 60


class Guard(StrEnum):
    """What the kernel confines a process by."""

    SECCOMP = "seccomp"
    LANDLOCK = "Landlock"


def forbid_core_files() -> None:
    """Disable core dumps of this process and its children, since their memory holds pages."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def readable_places() -> list[str]:
    """Return the files and directories that a confined process with this one's modules may read.

    They are Python's module paths, the directories of loaded libraries, and fonts; no installation prefix, since that
    of a system Python is `/usr`.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    libraries = {library[1] for line in maps if (library := _LIBRARY.search(line))}
    places = set(filter(os.path.exists, map(os.path.abspath, {*sys.path, *libraries, *_READABLE} - {""})))
    return sorted(place for place in places if places.isdisjoint(map(str, Path(place).parents)))


def confine_files(readable: Iterable[Path] = ()) -> bool:
    """Restrict this thread, and those it starts, to reading the `readable_places` and these files.

    Returns whether the kernel enforces it. Open files stay open.
    """
    libc = _libc()
    version = libc.syscall(_CREATE_RULESET, None, 0, _GET_VERSION)
    if version < 1 or libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    handled = ctypes.c_uint64((1 << _RIGHTS.get(version, 16)) - 1)
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for place in {*readable_places(), *map(str, readable)}:
            with suppress(OSError):  # most machines lack some
                opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
                rights = _READ_FILE | (_READ_DIRECTORY if Path(place).is_dir() else 0)
                rule = struct.pack("=Qi", rights, opened)  # struct landlock_path_beneath_attr
                libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
                os.close(opened)
        return bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def confine_calls(largest_file: int = LARGEST_FILE) -> bool:
    """Forbid this process to open sockets, to start or affect other processes, and to open files for writing.

    Returns whether the kernel accepted the filter; resource limits are set in any case.
    """
    forbid_core_files()
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    audit, machine = _MACHINES[platform.machine()]
    libc = _libc()
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_IF_EQUAL, audit, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_JUMP_IF_AT_LEAST, _FOREIGN_NUMBERS, 0, 1),
        _instruction(_RETURN, _REFUSE),
    ]
    for number in _UNKNOWN:
        code += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), _instruction(_RETURN, _NO_SUCH_CALL)]
    for numbers in _REFUSED.values():
        if (refused := numbers[machine]) is not None:
            code += [_instruction(_JUMP_IF_EQUAL, refused, 0, 1), _instruction(_RETURN, _REFUSE)]
    for numbers, argument, bits in _BITS_REFUSED.values():
        if (looked_at := numbers[machine]) is not None:
            code += _by_bits(looked_at, argument, bits, any_set=_REFUSE, none_set=_ALLOW)
    code += _by_bits(_CLONE[machine], 0, _CLONE_THREAD, any_set=_ALLOW, none_set=_REFUSE)
    code.append(_instruction(_RETURN, _ALLOW))
    program = _Program(len(code), b"".join(code))
    return bool(libc.syscall(_SECCOMP[machine], _MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0)


def missing_guards() -> tuple[Guard, ...]:
    """Return the guards that this machine's kernel lacks, tested in a separate process."""
    process = multiprocessing.get_context("spawn").Process(target=_try, daemon=True)
    process.start()
    process.join(_ANSWER_S)
    status = process.exitcode
    lost = 0b11 if status is None or status not in range(4) else status
    return tuple(guard for bit, guard in enumerate(Guard) if lost >> bit & 1)


def _try() -> None:
    files, calls = confine_files(), confine_calls()
    sys.exit((not calls) | (not files) << 1)


class _Program(ctypes.Structure):
    """The C struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _by_bits(number: int, argument: int, bits: int, *, any_set: int, none_set: int) -> Iterator[bytes]:
    """Yield the filter instructions that decide a system call by the lower half of an argument."""
    yield _instruction(_JUMP_IF_EQUAL, number, 0, 4)
    yield _instruction(_LOAD, _ARGUMENTS_AT + 8 * argument)
    yield _instruction(_JUMP_IF_ANY_BIT, bits, 0, 1)
    yield _instruction(_RETURN, any_set)
    yield _instruction(_RETURN, none_set)


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)
