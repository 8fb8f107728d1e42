"""What turns pixels into text: one protocol, several engines."""

from pecia_workers.engines.base import (
    Budget,
    Capabilities,
    Engine,
    EngineDeadError,
    EngineError,
    EngineRefusedError,
    EngineRequest,
    EngineUnavailableError,
    Generation,
    Load,
)
from pecia_workers.engines.registry import create_engine

__all__ = [
    "Budget",
    "Capabilities",
    "Engine",
    "EngineDeadError",
    "EngineError",
    "EngineRefusedError",
    "EngineRequest",
    "EngineUnavailableError",
    "Generation",
    "Load",
    "create_engine",
]
