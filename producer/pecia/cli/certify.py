"""`pecia certify`: the error rate of accepted values, estimated from reviewed pages."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Annotated
from uuid import UUID

import typer
from typer import Option

from pecia import arguments
from pecia.cli import endings, output, values
from pecia.cli.endings import Ending
from pecia.configuration import resolve
from pecia.connections import Connections
from pecia.errors import ConfigurationError
from pecia.evaluation.certifying import ReviewedValue, certificates, values_of
from pecia.records import Listing
from pecia_schemas.settings import ClientSettings

_UNNAMED = "document"

Seed = Annotated[int, Option(help="Seed of the sample: the same seed draws the same pages.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """Options that select the jobs whose pages are reviewed."""

    job: Annotated[
        list[UUID] | None,
        Option("--job", metavar="ID", help="All pages of this job, in order; may be repeated."),
    ] = None
    batch: values.InBatch = None
    metadata: values.OnlyWith = None
    since: Annotated[
        str | None, Option(metavar="WHEN", help="Only jobs submitted since: 30m, 2h, 7d or a date.")
    ] = None

    @property
    def listing(self) -> Listing:
        """The selected jobs, out of all jobs or of those that `--job` names."""
        listing = arguments.listing(
            {"metadata": values.metadata(self.metadata), "since": values.moment(self.since)}
        )
        if self.batch is None:
            return listing
        with closing(Connections(client_settings())) as connections:
            return replace(listing, batch=connections.store.batch(self.batch).id)


@values.grouped
def certify(
    *,
    sample: Annotated[int, Option(min=1, metavar="N", help="Pages in the sample.")] = 300,
    seed: Seed = 0,
    everything: Annotated[
        bool, Option("--all", help="Draw from all pages that were read. Review the drawn pages first.")
    ] = False,
    bound: Annotated[
        float, Option(min=0, max=1, help="Find the confidence above which fewer values are wrong.")
    ] = 0.01,
    reviewed: Reviewed,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object for each type.")] = False,
) -> None:
    """Estimate from reviewed pages how often accepted values are wrong, by type of document, with confidence bounds.

    A random sample is drawn from the pages that were checked completely (`w` in `pecia review`). With --all it is drawn
    from all pages that were read, and each page of the sample must have been checked.

    Example: `pecia certify --all --sample 200 --seed 7`
    """
    pages: dict[str, list[Sequence[ReviewedValue]]] = {}
    with closing(Connections(client_settings())) as connections:
        drawn = connections.reviews.sample(
            reviewed.listing, reviewed.job or (), sample, seed, reviewed=not everything
        )
        if left := sum(not page.checked for page in drawn):
            endings.complain(
                f"{output.counted(left, 'drawn page')} not checked completely yet: "
                f"`pecia review --sample {sample} --seed {seed}` shows them."
            )
            raise typer.Exit(Ending.FAILED)
        if not drawn:
            endings.complain("no page is checked completely yet: check some with `w` in `pecia review`.")
            return
        for page in drawn:
            of_type = pages.setdefault(page.document_type or _UNNAMED, [])
            of_type.append(values_of(*connections.reviews.look(page.job_id, page.number)))
    found = certificates(pages, bound=bound, seed=seed)
    headings = ("type", "values", "wrong", "rate, 95 %", f"rate <= {bound:.2%} from", "values there")
    if as_json:
        output.json_lines(found)
        return
    rows: list[Sequence[object]] = []
    for one in found:
        rate, above = one.rate, one.above
        sure = "-" if one.threshold is None else f"confidence {one.threshold}"
        there = f"{above.wrong} of {above.values} wrong" if above else "-"
        between = f"{rate.lower:.2%} - {rate.upper:.2%}"
        rows.append((one.document_type, rate.values, rate.wrong, between, sure, there))
    typer.echo(output.fitting(headings, rows, spare=("values there",)))


def client_settings() -> ClientSettings:
    """Return the settings of the stores. Raises `ConfigurationError` if they reach the fleet by a gateway."""
    settings = resolve()
    refuse_gateway(settings)
    return settings


def refuse_gateway(settings: ClientSettings) -> None:
    """Raise `ConfigurationError` for settings that reach the fleet by a gateway."""
    if settings.gateway_url:
        raise ConfigurationError("A review needs the fleet's stores: run it where PECIA_DATABASE_URL is set.")
