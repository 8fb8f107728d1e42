"""Says at the end of `make test` which tests it left to `make gate`."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

_KEY: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[_KEY][Path(item.nodeid.partition("::")[0]).parts[1]] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = dict(session.config.stash[_KEY].items())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each of xdist's processes collects all tests, so each leaves out the same."""
    left_out: dict[str, int] = getattr(node, "workeroutput", {}).get("left_out", {})
    node.config.stash[_KEY] |= Counter(left_out)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left = config.stash[_KEY]
    if config.option.markexpr == "not gate" and left:
        by_level = ", ".join(f"{count} {level}" for level, count in sorted(left.items()))
        terminalreporter.write_sep(
            "-",
            f"left to `make gate`: {left.total()} tests ({by_level}), real vLLM, lint, types, documentation",
        )
