"""Every verb of the command: where it is, and what `pecia --help` says of it before its module is loaded."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple


class Verb(NamedTuple):
    """What is known of a verb that is not loaded."""

    where: str
    """Its function, or the group of its own verbs: `module:name`."""
    help: str
    """The first line of what that says of itself."""

    def load(self) -> Any:
        """Return its function or group. Raises `ImportError`."""
        return EntryPoint("", self.where, _OTHERS).load()


_OTHERS: Final = "pecia.commands"
"""The group of entry points by which other distributions add verbs."""

PANELS: Final = {
    "Documents": {
        "read": Verb(
            "pecia.cli.reading:read",
            "Read documents: pictures, TIFF, PDF, DICOM. Prints the jobs' ids, or with --wait their text.",
        ),
        "caption": Verb(
            "pecia.cli.captioning:caption",
            "Describe what videos show, segment by segment, and as a whole. "
            "Prints the jobs' ids, or with --wait the captions.",
        ),
        "sample": Verb(
            "pecia_workers.commands.up:sample",
            "Write made-up medical documents to try things with: a PDF of some pages, pictures, a damaged file.",
        ),
        "backfill": Verb(
            "pecia.cli.backfill:backfill",
            "Read all documents below a prefix, in the bulk lane. "
            "Repeat it as you like: what was handed over is not again.",
        ),
        "result": Verb(
            "pecia.cli.results:result",
            "Print what jobs read or captioned, or write it to files: text, Markdown, HTML, CSV, hOCR, PDF, subtitles.",
        ),
        "export": Verb(
            "pecia.cli.export:export",
            "Write the results of a batch, or of all jobs that a filter finds, to files with a manifest.",
        ),
        "eval": Verb(
            "pecia.cli.evaluation:evaluate",
            "Read files whose content is known, and show by kind of page how much is right.",
        ),
        "review": Verb(
            "pecia.cli.review:review",
            "Correct what is in doubt, beside the pages' pictures, in a browser on this machine, "
            "until SIGTERM or Ctrl-C.",
        ),
        "certify": Verb(
            "pecia.cli.certify:certify",
            "Say from reviewed pages how often accepted values are wrong, by type of document, with bounds that hold.",
        ),
        "purge": Verb(
            "pecia.cli.erasing:purge",
            "Erase documents, results, metadata and callbacks of jobs at once and for good; "
            "running ones are cancelled.",
        ),
        "audit": Verb(
            "pecia.cli.erasing:audit", "Show who read which result, and what was erased, newest first."
        ),
    },
    "Jobs": {
        "list": Verb(
            "pecia.cli.jobs:list_jobs", "Show jobs, newest first, or pages that a person should look at."
        ),
        "status": Verb("pecia.cli.jobs:status", "Show where jobs are."),
        "watch": Verb("pecia.cli.watching:watch", "Show jobs live until they are over, or Ctrl-C."),
        "wait": Verb(
            "pecia.cli.jobs:wait",
            "Wait until jobs are over. Exits with 0 only if every one of them succeeded whole.",
        ),
        "cancel": Verb("pecia.cli.jobs:cancel", "End jobs now. Those that are over stay as they are."),
        "retry": Verb(
            "pecia.cli.jobs:retry",
            "Run again what failed or was cancelled in jobs that are over. What was read stays read.",
        ),
        "dead": Verb(
            "pecia.cli.dead:app",
            "Parts that the fleet has given up though their documents may be fine: see them, try them again.",
        ),
        "webhook": Verb(
            "pecia.cli.webhooks:app",
            "Receivers that are told of all jobs: register and try them, see what they were told, tell it again.",
        ),
    },
    "Fleet": {
        "up": Verb(
            "pecia_workers.commands.up:up",
            "Run a whole fleet on this machine until Ctrl-C: Postgres, Redis, workers and Flower.",
        ),
        "demo": Verb(
            "pecia.demo:demo",
            "Read a set of medical documents on a throw-away fleet and check every result. Exit 0 only if all is well.",
        ),
        "doctor": Verb(
            "pecia_workers.commands.doctor:doctor",
            "Check the stores and who is on duty. Exit 4 if something is unavailable, 1 if the stores differ.",
        ),
        "env": Verb(
            "pecia.cli.environment:env",
            "Print the variables that other programs need to reach this fleet, such as `celery -A pecia_workers.app`.",
        ),
        "usage": Verb(
            "pecia.cli.usage:usage",
            "Show what was worked on, in tokens and seconds, attempts that were thrown away included.",
        ),
        "worker": Verb(
            "pecia_workers.commands.worker:worker",
            "Run one process of the fleet until SIGTERM or Ctrl-C; it finishes what it has begun.",
        ),
        "flower": Verb(
            "pecia_workers.commands.flower:flower",
            "Serve Flower, where people watch the fleet, until SIGTERM or Ctrl-C.",
        ),
        "gateway": Verb(
            "pecia.cli.gateway:gateway",
            "Serve the fleet over HTTP to clients with a key, until SIGTERM or Ctrl-C.",
        ),
        "migrate": Verb(
            "pecia_migrations.cli:migrate", "Bring the database to this version's schema. Safe to repeat."
        ),
    },
    "Planning": {
        "plan": Verb(
            "pecia_workers.commands.plan:plan",
            "Work out how many GPUs read a load in time, their memory and cost; checked by simulating one of them.",
        ),
        "engine": Verb(
            "pecia_workers.commands.engine:engine",
            "Plan which model a GPU can run, check that it reads, and find its sizes.",
        ),
        "simulate": Verb(
            "pecia_workers.commands.simulate:simulate",
            "Run the worker's own admission policies over a simulated engine, in seconds: "
            "who waits, and how full it is.",
        ),
        "experiment": Verb(
            "pecia_workers.commands.experiment:experiment",
            "Send the same pages in batches of each size, after each wait, and compare latency, tokens and use.",
        ),
    },
    "Keys": {
        "access": Verb("pecia.cli.access:app", "Keys of the gateway: make them, see them, end them."),
        "keys": Verb(
            "pecia_workers.commands.keys:keys",
            "Make encryption keys, and bring what is stored under the current one.",
        ),
    },
}
"""Pecia's own verbs, in the panels and in the order of `pecia --help`."""

OWN: Final = {name: verb for panel in PANELS.values() for name, verb in panel.items()}
"""The same, by name alone."""


def others() -> dict[str, Verb]:
    """Return the verbs that other distributions add, by name."""
    points = entry_points(group=_OTHERS)
    return {
        point.name: Verb(point.value, f"Added by {point.module}.")
        for point in points
        if point.name not in OWN
    }
