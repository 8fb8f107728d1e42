"""Breaks the core in many small ways, one at a time, and tells which of them no test notices: `make mutate`.

mutmut wants the packages beside their tests, so it works on a copy of both; pyproject.toml says what is broken and
which tests are to notice. It leaves SQL and Lua, properties and constants of modules as they are.
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGE = ROOT / "build" / "mutate"
COPIED = (
    "producer/pecia",
    "workers/pecia_workers",
    "schemas/pecia_schemas",
    "migrations/pecia_migrations",
    "tests",
)
NOTICED = ("killed", "timeout")


def stage() -> None:
    """Copy what is broken and what is to notice."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for source in map(Path, COPIED):
        shutil.copytree(ROOT / source, STAGE / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", STAGE)


def mutmut(*arguments: str) -> list[str]:
    """Return the command that has mutmut do something."""
    return [str(Path(sys.executable).with_name("mutmut")), *arguments]


def told(*arguments: str) -> str:
    return subprocess.check_output(mutmut(*arguments), cwd=STAGE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", help="of the names of mutants, which end in a number: '*1' is every tenth")
    parser.add_argument("--minutes", type=float, default=30)
    chosen = parser.parse_args()
    stage()
    os.environ["CI"] = "1"  # hypothesis then takes the same examples every time, and any time for each
    bound = ["timeout", "--signal=INT", f"{chosen.minutes}m"]  # what was not tried by then stays untried
    subprocess.run([*bound, *mutmut("run", "--max-children", "2", chosen.pattern)], cwd=STAGE, check=False)
    listed = (line.strip().rsplit(": ", 1) for line in told("results", "--all", "true").splitlines())
    results = {name: result for name, result in listed if fnmatch.fnmatch(name, chosen.pattern)}
    counts = Counter(results.values())
    noticed = sum(counts[result] for result in NOTICED)
    if not noticed:
        sys.exit("No mutant was tried to its end.")
    for name, result in sorted(results.items()):
        if result == "survived":
            sys.stdout.write(told("show", name) + "\n")
    sys.stdout.write(", ".join(f"{count} {result}" for result, count in counts.most_common()) + "\n")
    score = noticed / (noticed + counts["survived"])
    sys.stdout.write(f"Score: {score:.0%} of those that ran and that a test reaches.\n")


if __name__ == "__main__":
    main()
