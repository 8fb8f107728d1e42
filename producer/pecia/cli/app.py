"""The command line as a whole: it loads the verb that is called, and no other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from pecia.cli.verbs import OWN, PANELS, Verb, others

_EXTRAS = {"up": "local", "demo": "local", "eval": "eval", "gateway": "gateway", "review": "gateway,pdf"}
_HOME = re.compile(r"--home\b")


class Verbs(TyperGroup):
    """All verbs. They are listed and completed by the table; only the one that is called is loaded."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the verb. Typer has pydantic, slow to load, check all but a flag's true or false."""
        known = self.params
        self.params = [option for option in known if option.name != "home" or _HOME.match(" ".join(args))]
        for option in self.get_params(ctx):
            if option.default is None:
                option.default = False
        try:
            return super().parse_args(ctx, args)
        finally:
            self.params = known

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's signature, as below
        """Return the names of all verbs."""
        return [*OWN, *others()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return the command of a verb, None if there is none."""
        if cmd_name not in self.commands and (verb := OWN.get(cmd_name) or others().get(cmd_name)):
            self.commands[cmd_name] = _command(cmd_name, verb)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command the arguments name, and say which one may be meant if there is none."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UnknownVerbError(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write what each verb does, panel by panel."""
        panels = PANELS | {"Others": others()}
        width = max(len(name) for panel in panels.values() for name in panel)
        for title, panel in panels.items():
            if panel:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:{width}}", verb.help) for name, verb in panel.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the verbs and options that begin so."""
        listed = [TyperCommand(name, help=verb.help) for name, verb in (OWN | others()).items()]
        group = TyperGroup(commands=listed, params=self.params)
        return group.shell_complete(typer.Context(group, parent=ctx), incomplete)


class UnknownVerbError(TyperException):
    """There is no such command."""

    exit_code = 2


def _command(name: str, verb: Verb) -> Any:
    """Return the verb's command; one that says what to install if it cannot be imported."""
    made = typer.Typer()
    try:
        found = verb.load()
    except ImportError as error:
        lenient = {"ignore_unknown_options": True, "allow_extra_args": True}
        made.command(name, context_settings=lenient)(_missing(name, error.name))
    else:
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=name)
        else:
            made.command(name)(found)
    return typer.main.get_group(made).commands[name]


def _missing(name: str, module: str | None) -> Callable[..., Any]:
    extra = _EXTRAS.get(name, "workers")

    def missing() -> None:
        from pecia.errors import ConfigurationError  # noqa: PLC0415  brings pydantic

        raise ConfigurationError(
            f"`pecia {name}` is not installed here (no module {module}): pip install 'pecia[{extra}]'."
        )

    missing.__doc__ = f"Not installed: pip install 'pecia[{extra}]'."
    return missing


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to load than all the rest of this help
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    home: Annotated[
        str,
        typer.Option(metavar="DIR", help="Home of the fleet that is meant, if several run on this machine."),
    ] = "",
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Hand documents to a fleet of readers, and get their text.

    Exit codes: 0 done, 1 a job failed, 2 usage or settings, 3 timeout, 4 something is unavailable.
    """
    if home:
        os.environ["PECIA_HOME"] = home  # where every verb's settings look, whichever package it is of
    if show_version:
        typer.echo(f"pecia {version('pecia')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
