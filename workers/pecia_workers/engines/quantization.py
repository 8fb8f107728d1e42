"""Names of quantisations that vLLM once took, or seems to take: refused with what to do instead."""

from __future__ import annotations

from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.profiles import profile_file


def check_quantization(name: str) -> None:
    """Raise `EngineUnavailableError` for a `PECIA_QUANTIZATION` that is known to lead nowhere.

    Every other name is vLLM's to judge, which takes those of its plugins too.
    """
    advice = profile_file().refused.get(name.lower().replace("-", "_"))
    if advice:
        raise EngineUnavailableError(
            f"PECIA_QUANTIZATION={name}: {advice}. (PECIA_ENGINE_OPTIONS passes a `quantization` on unchecked.)"
        )
