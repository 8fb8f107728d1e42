"""Options of a command that say how a language model is to write."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from pecia_schemas.tasks import GenerationOptions, Preset

_PANEL = "How a language model writes"

PresetOption = Annotated[
    Preset | None, typer.Option("--preset", help="A way to write, by name.", rich_help_panel=_PANEL)
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, max=2, help="0: greedily, the most likely word.", rich_help_panel=_PANEL),
]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Pick among words that make up this share.", rich_help_panel=_PANEL),
]
TopK = Annotated[
    int | None, typer.Option(min=0, help="Pick among so many words; 0: all.", rich_help_panel=_PANEL)
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(min=0, max=2, help="Above 1: repeat less.", rich_help_panel=_PANEL)
]
MaxOutputTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut an answer here.", rich_help_panel=_PANEL)
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Pick the same words each time.", rich_help_panel=_PANEL)
]
Adapter = Annotated[
    str | None, typer.Option(help="LoRA adapter of the fleet, by name.", rich_help_panel=_PANEL)
]


def options(**changes: float | None) -> GenerationOptions | None:
    """Return what the given options change; None if nothing. Raises `typer.BadParameter`."""
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        return GenerationOptions.model_validate(given) if given else None
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_context=False, include_input=False)
        hint = "--" + str(first["loc"][0]).replace("_", "-")
        raise typer.BadParameter(first["msg"].lower(), param_hint=hint) from None
