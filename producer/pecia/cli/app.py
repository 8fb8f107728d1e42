"""The `pecia` command line. It loads only the module of the called verb."""

import os
import re
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from pecia_schemas.installing import install_command

_OTHERS: Final = "pecia.commands"
"""Entry point group by which other distributions add verbs."""

PANELS: Final = {
    "Documents": {
        "read": "Read documents: pictures, TIFF, PDF, DICOM. Prints the jobs' ids, or with --wait their text.",
        "caption": "Describe videos, segment by segment and in a summary. Prints the jobs' ids, or with "
        "--wait the captions.",
        "sample": "Write sample medical documents: a PDF of some pages, pictures, a damaged file.",
        "backfill": "Read all documents below a prefix, in the bulk lane. It can be repeated: no "
        "document is submitted twice.",
        "watch-folder": "Read every document that is put into a folder, once, until Ctrl-C or SIGTERM.",
        "result": "Print what jobs read or captioned, or write it to files: text, Markdown, HTML, CSV, hOCR, PDF, "
        "subtitles.",
        "export": "Write the results of a batch, or of all jobs that a filter finds, to files with a manifest.",
        "eval": "Read files whose content is known, and show how much is right, by kind of page.",
        "review": "Correct doubtful pages beside their pictures, in a browser on this machine, until "
        "SIGTERM or Ctrl-C.",
        "certify": "Estimate from reviewed pages how often accepted values are wrong, by type of document, with "
        "confidence bounds.",
        "purge": "Erase documents, results, metadata and callbacks of jobs now and for good; running jobs are "
        "cancelled.",
        "audit": "Show who read and erased results, newest first.",
    },
    "Jobs": {
        "list": "Show jobs, newest first, or pages that need review.",
        "status": "Show the state of jobs; of one job also its parts, and where their time went.",
        "watch": "Show jobs live until all have ended, or Ctrl-C.",
        "wait": "Wait until jobs have ended. Exits with 0 only if all of them succeeded completely.",
        "cancel": "Cancel jobs now. Jobs that have ended stay as they are.",
        "retry": "Run the failed and cancelled parts of ended jobs again. Pages that were read stay.",
        "dead": "Parts that the fleet has given up although their documents may be fine: list, inspect, retry them.",
        "webhook": "Register and test receivers that are notified of all jobs; list and replay deliveries.",
    },
    "Fleet": {
        "up": "Run a fleet on this machine until Ctrl-C: Postgres, Redis, workers and Flower.",
        "demo": "Read a set of medical documents on a throw-away fleet and check every result. Exit 0 only if all "
        "is well.",
        "doctor": "Check the stores and the workers. Exit 4 if something is unavailable, 1 if the stores differ.",
        "env": "Print the variables that other programs need to reach this fleet, such as `celery -A "
        "pecia_workers.app`.",
        "usage": "Show the usage in tokens and seconds, including discarded attempts.",
        "worker": "Run one process of the fleet until SIGTERM or Ctrl-C, which lets it finish its work.",
        "flower": "Serve Flower, where people watch the fleet, until SIGTERM or Ctrl-C.",
        "gateway": "Serve the fleet over HTTP to clients with a key, until SIGTERM or Ctrl-C.",
        "mcp": "Serve tools to a language model on standard input and output: submit, status, pages, fields, search.",
        "migrate": "Bring the database to this version's schema. Safe to repeat.",
    },
    "Planning": {
        "plan": "Compute how many GPUs read a load in time, and their cost, by simulating one of them.",
        "engine": "Plan which model a GPU can run, check that it reads, and find its sizes.",
        "simulate": "Run the worker's admission policies over a simulated engine; show the waiting times and "
        "the engine's use.",
        "experiment": "Send the same pages in batches of each size, after each wait, and compare latency, tokens "
        "and use.",
    },
    "Keys": {
        "access": "Make, list, rotate and revoke keys of the gateway.",
        "keys": "Make encryption keys, and encrypt stored data again under the current one.",
    },
}
"""Pecia's own verbs with their help lines, in the panels and in the order of `pecia --help`."""

OWN: Final = {name: does for panel in PANELS.values() for name, does in panel.items()}
"""Help lines of the same verbs by name, without panels."""

_MODULES: Final = {
    "pecia.cli.accounts": ("env", "access", "purge", "audit", "usage"),
    "pecia.cli.backfill": ("backfill",),
    "pecia.cli.certify": ("certify",),
    "pecia.cli.demo": ("demo",),
    "pecia.cli.evaluation": ("eval",),
    "pecia.cli.folder": ("watch-folder",),
    "pecia.cli.jobs": ("list", "status", "wait", "cancel", "retry", "dead"),
    "pecia.cli.reading": ("read", "caption"),
    "pecia.cli.results": ("result", "export"),
    "pecia.cli.serving": ("review", "gateway"),
    "pecia.cli.tools": ("mcp",),
    "pecia.cli.watching": ("watch",),
    "pecia.cli.webhooks": ("webhook",),
    "pecia_migrations.cli": ("migrate",),
    "pecia_workers.commands.doctor": ("doctor",),
    "pecia_workers.commands.engine": ("engine",),
    "pecia_workers.commands.keys": ("keys",),
    "pecia_workers.commands.simulate": ("plan", "simulate", "experiment"),
    "pecia_workers.commands.up": ("sample", "up"),
    "pecia_workers.commands.worker": ("worker", "flower"),
}
"""Modules that define the verbs' functions or command groups."""
_CALLED: Final = {"eval": "evaluate", "list": "list_jobs", "watch-folder": "watch_folder"}
"""Function names that differ from their verb's name."""
_WHERE: Final = {
    name: f"{module}:{_CALLED.get(name, name)}" for module, names in _MODULES.items() for name in names
}


def others() -> dict[str, EntryPoint]:
    """Return the verbs that other distributions add, by name."""
    return {point.name: point for point in entry_points(group=_OTHERS) if point.name not in OWN}


def _what_others_do() -> dict[str, str]:
    return {name: f"Added by {point.module}." for name, point in others().items()}


_EXTRAS = {
    "up": "local",
    "demo": "local",
    "eval": "eval",
    "gateway": "gateway",
    "mcp": "mcp",
    "review": "gateway,pdf",
}
_HOME = re.compile(r"(--home|--help|-h)\b")


class Verbs(TyperGroup):
    """The group of all verbs. It lists and completes verbs from the table and loads only the called one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the verb. Typer loads pydantic, which is slow, to check any value but a flag's."""
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
        """Return the command of a verb, or None if no such verb exists."""
        if cmd_name not in self.commands:
            where = _WHERE.get(cmd_name)
            point = EntryPoint(cmd_name, where, _OTHERS) if where else others().get(cmd_name)
            if point:
                self.commands[cmd_name] = _command(point)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name. An unknown name raises an error that suggests a similar one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UnknownVerbError(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write each verb's help line, panel by panel."""
        panels = PANELS | {"Others": _what_others_do()}
        width = max(len(name) for panel in panels.values() for name in panel)
        for title, panel in panels.items():
            if panel:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:{width}}", does) for name, does in panel.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the verbs and options that begin with the typed text."""
        listed = [TyperCommand(name, help=does) for name, does in (OWN | _what_others_do()).items()]
        group = TyperGroup(commands=listed, params=self.params)
        return group.shell_complete(typer.Context(group, parent=ctx), incomplete)


class UnknownVerbError(TyperException):
    """The command line names no known verb."""

    exit_code = 2


def _command(point: EntryPoint) -> Any:
    """Return a verb's command. If its import fails, return a command that reports what to install."""
    made, name = typer.Typer(), point.name
    try:
        found = point.load()
    except ImportError as error:
        lacks, cure = error.name, install_command(_EXTRAS.get(name, "workers"))

        @made.command(
            name,
            help=f"Not installed: {cure}",
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        def missing() -> None:
            from pecia.errors import ConfigurationError  # noqa: PLC0415  brings pydantic

            raise ConfigurationError(f"`pecia {name}` is not installed here (no module {lacks}): {cure}")

    else:
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=name, help=OWN.get(name))
        else:
            made.command(name)(found)
    return typer.main.get_group(made).commands[name]


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
        str, Option(metavar="DIR", help="Home of the fleet to use, if several run on this machine.")
    ] = "",
    show_version: Annotated[bool, Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Submit documents to a fleet that reads them, and get their text.

    `pecia VERB --help` shows the options of a verb.

    Exit codes: 0 done, 1 a job failed, 2 usage or settings, 3 timeout, 4 something is unavailable.
    """
    if home:
        os.environ["PECIA_HOME"] = home  # every verb's settings read it, in every package
    if show_version:
        typer.echo(f"pecia {version('pecia')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
