"""What code does that has taken over a confined process: a document's, modelled by functions that run inside it."""

import os
import pickle
import stat
import threading
from pathlib import Path


def read(path: str) -> int:
    return len(Path(path).read_bytes())


def read_parent(name: str) -> int:
    """Read a file of /proc of the process that owns the keys: the parent of the template that forked this one."""
    return read(f"/proc/{_worker()}/{name}")


def overwrite_parent(address: int, new: bytes) -> None:
    os.pwrite(os.open(f"/proc/{_worker()}/mem", os.O_RDWR), new, address)


def write(path: str) -> None:
    Path(path).write_text("x")


def own_environment() -> list[str]:
    return sorted(os.environ)


def kill_parent() -> None:
    os.kill(os.getppid(), 0)


def start_thread() -> bool:
    thread = threading.Thread(target=bool)
    thread.start()
    thread.join()
    return True


def answer_with(content: bytes) -> None:
    """Write to the parent without the code that frames answers, and end."""
    for descriptor in range(3, 64):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        if is_socket:
            os.write(descriptor, content)
    os._exit(0)


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def bomb(path: Path) -> bytes:
    """Return what `multiprocessing` would unpickle: the length, and the pickle."""
    content = pickle.dumps((True, Bomb(path)))
    return len(content).to_bytes(4, "big") + content


def _worker() -> int:
    return int(os.environ["PYTHON_WORKER"])
