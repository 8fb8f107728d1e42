"""A wall clock that is wrong, for our modules alone; what a library or another process takes for the time is right."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

import pytest


@contextmanager
def clock_wrong_by(ahead: timedelta) -> Iterator[None]:
    """Have every module of Pecia that is loaded read a clock that is so far ahead, in this process.

    What is measured, by `time.monotonic`, stays right, as it does on a machine whose clock is set.
    """

    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, datetime)

    class Wrong(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + ahead

    right, right_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        for name, module in tuple(sys.modules.items()):
            if name.startswith("pecia"):
                _set_wrong(patch, module, Wrong)
        patch.setattr(time, "time", lambda: right() + ahead.total_seconds())
        patch.setattr(time, "time_ns", lambda: right_ns() + int(ahead.total_seconds() * 1e9))
        yield


def _set_wrong(patch: pytest.MonkeyPatch, module: Any, wrong: type[datetime]) -> None:
    if vars(module).get("datetime") is datetime:
        patch.setattr(module, "datetime", wrong)
