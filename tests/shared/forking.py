"""Processes that a process has its templates fork."""

from __future__ import annotations

from pathlib import Path


def templates_of(pid: int | str = "self") -> list[int]:
    """Return the templates that a process has started."""
    return [child for child in _children(pid) if b"pecia_workers.template" in _command(child)]


def forked_for(pid: int | str = "self") -> list[int]:
    """Return the processes that those have forked."""
    return [child for template in templates_of(pid) for child in _children(template)]


def _children(pid: int | str) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
