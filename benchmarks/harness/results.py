"""What was measured, kept: a JSON file for each day and machine, and the same as a page beside it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from harness.catalogue import CATALOGUE, Benchmark
from harness.machine import commit, machine, short_name, versions
from harness.report import Report

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One benchmark of them."""

    at: str
    commit: str
    size: str
    command: str
    took_s: float
    told: Mapping[str, Any]
    """As the script printed it."""

    @property
    def report(self) -> Report:
        """What it found."""
        return Report.of(self.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was measured on one machine on one day; what is measured again replaces what was."""

    at: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    benchmarks: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of_today(cls, directory: Path) -> tuple[Self, Path]:
        """Return what today's runs on this machine found before, and where it is kept."""
        now = datetime.now(UTC)
        path = directory / f"{now:%Y-%m-%d}-{short_name()}.json"
        known = cls.read(path).benchmarks if path.exists() else {}
        at = now.isoformat(timespec="seconds")
        return cls(at=at, machine=machine(), versions=versions(), benchmarks=known), path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a file holds."""
        kept = json.loads(path.read_text())
        kept["benchmarks"] = {name: Entry(**entry) for name, entry in kept["benchmarks"].items()}
        return cls(**kept)

    def write(self, path: Path) -> None:
        """Keep them, and write the page beside the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        path.with_suffix(".md").write_text(self.markdown(f"# Benchmarks, {self.at[:10]}"))

    def measured(self) -> list[tuple[Benchmark, Entry]]:
        """Return each benchmark with what it found, in the order of the catalogue."""
        return [(one, self.benchmarks[one.name]) for one in CATALOGUE if one.name in self.benchmarks]

    def markdown(self, head: str) -> str:
        """Return a page of them."""
        sections = [_section(benchmark, entry) for benchmark, entry in self.measured()]
        return "\n\n".join([head, self.where(), *sections]) + "\n"

    def where(self) -> str:
        """Return on what they were measured."""
        about = self.machine
        listed = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{about['processor']} ({about['architecture']}), {about['cores']} cores, {about['memory']}, "
            f"{about['system']}; client, workers and servers share it.\n\nVersions: {listed}."
        )


def newest(directory: Path = RESULTS) -> Path | None:
    """Return the file that was written last, None if there is none."""
    kept = {json.loads(path.read_text())["at"]: path for path in directory.glob("*.json")}
    return kept[max(kept)] if kept else None


def entry_of(size: str, command: str, told: Mapping[str, Any], took_s: float) -> Entry:
    """Return what was found this moment."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Entry(at=at, commit=commit(), size=size, command=command, took_s=round(took_s, 1), told=told)


def _section(benchmark: Benchmark, entry: Entry) -> str:
    report = entry.report
    parts = [f"## {benchmark.heading}", benchmark.about]
    for table in report.tables:
        parts += [f"{table.title[:1].upper()}{table.title[1:]}:"] if table.title else []
        parts.append(table.markdown())
    parts += ["\n".join(f"- {note}" for note in report.notes)] if report.notes else []
    parts.append(f"`{entry.command}`, commit {entry.commit}, {entry.at[:16].replace('T', ' ')} UTC.")
    return "\n\n".join(parts)
