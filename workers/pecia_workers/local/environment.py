"""Settings as the environment of a child process."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, TypeAdapter

from pecia_schemas.settings import PREFIX

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_DURATION = TypeAdapter(timedelta)


def environment(settings: WorkerSettings) -> dict[str, str]:
    """Return our environment with every setting that was given to us, however that was.

    One given at its default is passed on too: it wins over what a profile says.
    """
    given = {name: value for name, value in settings if name in settings.model_fields_set}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | {PREFIX + name.upper(): _text(value) for name, value in given.items()}


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return str(_DURATION.dump_python(value, mode="json"))
    return value if isinstance(value, str) else json.dumps(value)
