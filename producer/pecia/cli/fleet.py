"""The fleet's verbs: found by entry points, so that the client knows nothing of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from pecia.errors import ConfigurationError

_GROUP = "pecia.commands"
_DEMO = EntryPoint("demo", "pecia.demo:demo", _GROUP)
_EXTRAS = {"up": "local", "demo": "local"}


def verbs() -> dict[str, EntryPoint]:
    """Return what `pecia` can do beside being a client, as far as it is installed, by verb."""
    found = {point.name: point for point in entry_points(group=_GROUP)}
    return {_DEMO.name: _DEMO} | found


def command(point: EntryPoint) -> TyperCommand | TyperGroup:
    """Return the verb's command; one that says what to install if it cannot be imported."""
    try:
        function = point.load()
    except ImportError as error:
        return _typed(_missing(point.name, error.name), name=point.name, anything_goes=True)
    if isinstance(function, typer.Typer):
        return _group(function, name=point.name)
    return _typed(function, name=point.name)


def _missing(name: str, module: str | None) -> Callable[..., Any]:
    extra = _EXTRAS.get(name, "workers")

    def missing() -> None:
        raise ConfigurationError(
            f"`pecia {name}` is not installed here (no module {module}): pip install 'pecia[{extra}]'."
        )

    missing.__doc__ = f"Not installed: pip install 'pecia[{extra}]'."
    return missing


def _typed(function: Callable[..., Any], *, name: str, anything_goes: bool = False) -> TyperCommand:
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True} if anything_goes else {}
    app = typer.Typer(add_completion=False)
    app.command(name, context_settings=lenient)(function)
    built = typer.main.get_command(app)
    if not isinstance(built, TyperCommand):
        message = f"{name} is no plain command"
        raise TypeError(message)
    return built


def _group(app: typer.Typer, *, name: str) -> TyperGroup:
    """Return a verb that has verbs of its own."""
    built = typer.main.get_group(app)
    built.name = name
    return built


class Verbs(TyperGroup):
    """The client's own verbs and, imported only when asked for, the fleet's."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all verbs, the client's first."""
        return [*super().list_commands(ctx), *sorted(verbs())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb, None if there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = verbs().get(cmd_name)
        return point and command(point)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command the arguments name, and say which one may be meant if there is none."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UnknownVerbError(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


class UnknownVerbError(TyperException):
    """There is no such command."""

    exit_code = 2
