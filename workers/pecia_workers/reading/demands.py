"""Whether an engine can do what a task asks for, before any work goes into it."""

from __future__ import annotations

from pecia_schemas import FailureCode, ReadDocument
from pecia_workers.engines.base import Capabilities, EngineRefusedError


def check_demands(task: ReadDocument, engine: Capabilities) -> None:
    """Raise `EngineRefusedError`, with the code that says what to do, for the first thing the engine cannot do."""
    languages = engine.languages
    if task.language is not None and languages is not None and task.language not in languages:
        read = f"The engine {engine.name} reads {', '.join(sorted(languages))}."
        remedy = engine.remedies.get(task.language, "")
        raise EngineRefusedError(f"{read} {remedy}".strip(), FailureCode.LANGUAGE_UNAVAILABLE)
    if task.fields is not None and not engine.fields:
        raise EngineRefusedError(
            f"The engine {engine.name} reads text alone.", FailureCode.FIELDS_UNAVAILABLE
        )
    if task.instructions is not None and not engine.instructions:
        raise EngineRefusedError(
            f"The engine {engine.name} takes no instructions.", FailureCode.INSTRUCTIONS_UNAVAILABLE
        )
    check_adapter(task.adapter, engine)


def check_adapter(adapter: str | None, engine: Capabilities) -> None:
    """Raise `EngineRefusedError` if the engine has no adapter of this name."""
    if adapter is not None and adapter not in engine.adapters:
        there = ", ".join(sorted(engine.adapters)) or "none"
        raise EngineRefusedError(
            f"Adapters of the engine {engine.name}: {there}.", FailureCode.ADAPTER_UNAVAILABLE
        )
