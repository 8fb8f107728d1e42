"""A clock that can be set wrong: loaded by every Python process that finds this directory on its path.

`SOAK_CLOCK` names a file that holds, as a double, the seconds by which `time.time` is ahead. Time that is measured
(`time.monotonic`) stays right, as it does on a machine whose clock is set.
"""

import mmap
import os
import struct
import time
from pathlib import Path


def _set_wrong_by(file: Path) -> None:
    with file.open("rb") as stream:
        ahead = mmap.mmap(stream.fileno(), 8, access=mmap.ACCESS_READ)
    true_time, true_time_ns = time.time, time.time_ns

    def seconds_ahead() -> float:
        (seconds,) = struct.unpack("d", ahead[:8])
        return float(seconds)

    time.time = lambda: true_time() + seconds_ahead()
    time.time_ns = lambda: true_time_ns() + int(seconds_ahead() * 1e9)


if "SOAK_CLOCK" in os.environ:
    _set_wrong_by(Path(os.environ["SOAK_CLOCK"]))
