"""`python -m tests.soak`: break a fleet in every way there is and see whether it keeps its promises.

Exits with 0 only if all were kept. The same seed breaks the same things in the same order, as soon as as many pages
are read.
"""

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from redis import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pecia_workers.local.process import wait_until
from tests.soak import auditor
from tests.soak.auditor import Auditor, Finding
from tests.soak.catalogue import FAULTS
from tests.soak.director import Director, Strike, plan
from tests.soak.producer import Producer, orders
from tests.soak.report import Report, Row, rows_of
from tests.soak.rig import Rig, running

_BACKLOG = 150
"""Most parts that wait or run while faults strike, so that there is always something to lose."""
_TICK_S = 0.1
_STALLED_S = 240.0
"""Without a page that is over: longer than anything lasts and the fleet needs to recover from it."""
_SETTLED_S = 240.0
_EMPTY_S = 60.0
_GONE_S = 10.0


def soak(task: argparse.Namespace, plan: Sequence[Strike], progress: Progress) -> Report:
    """Run a soak as the command line says and judge it; returns when its fleet is gone."""
    began = time.monotonic()
    with running(engine=task.engine, lease=task.lease, seed=task.seed, pages=task.pages) as rig:
        run = _Run(rig, task, plan, progress)
        findings = [*run.strike(), *run.settle(), *run.judge(), *auditor.judge_logs(rig.logs)]
        figures, rows, home, orphans = run.figures(), run.rows(), rig.home, auditor.orphans(rig.home)
        if task.logs:
            shutil.copytree(rig.logs, task.logs, dirs_exist_ok=True)
    wait_until(lambda: not auditor.leftovers(home), _GONE_S)
    findings += auditor.judge_processes(orphans, auditor.leftovers(home))
    return Report(
        seed=task.seed, seconds=time.monotonic() - began, figures=figures, rows=rows, findings=findings
    )


class _Run:
    """The part of a soak during which the fleet runs."""

    def __init__(
        self, rig: Rig, task: argparse.Namespace, plan: Sequence[Strike], progress: Progress
    ) -> None:
        self._rig = rig
        self._task = task
        self._progress = progress
        self._bar = progress.add_task("pages over", total=task.pages)
        self._auditor = Auditor(rig.observer)
        self._over = self._open = 0
        self._moved_at = time.monotonic()
        self._director = Director(rig, plan, seed=task.seed, tell=progress.console.print)
        self._producer = Producer(
            rig.client, orders(task.seed), webhook=rig.receiver.url, has_room=self._has_room
        )

    def strike(self) -> list[Finding]:
        """Keep the fleet busy until every fault has struck and enough pages were handed over."""
        self._producer.start()
        while not self._is_enough() and not self._is_stalled():
            self._look()
            self._director.tick(self._over)
            time.sleep(_TICK_S)
        self._producer.stop()
        self._director.heal_all()
        late = (
            f"{injection.name} {f'{seconds:.1f} s' if (seconds := injection.recovered_s) else 'never'}"
            for injection in self._director.injections
            if injection.is_late(self._task.slack)
        )
        return [
            auditor.finding("the fleet recovered in time", late),
            auditor.finding("every fault struck", self._director.unstruck),
        ]

    def settle(self) -> list[Finding]:
        """Wait until all is over that was begun; what does not come to rest is found by the audit."""
        self._progress.console.print("no more faults: the rest is read, called back and cleared away")
        wait_until(self._is_settled, _SETTLED_S)
        wait_until(lambda: self._keys_left() == [], _EMPTY_S)
        keys = self._keys_left()
        stuck = (
            [str(self._producer.failure or "waits")] if self._producer.busy or self._producer.failure else []
        )
        return [
            auditor.finding("producers get an answer", stuck),
            auditor.finding("Redis is empty", ["no answer"] if keys is None else keys),
        ]

    def judge(self) -> list[Finding]:
        receiver = self._rig.receiver
        return [
            *self._auditor.judge_jobs(self._producer.accepted),
            *self._auditor.judge_parts(),
            *self._auditor.judge_deaths(self._director.struck_workers),
            *self._auditor.judge_callbacks(receiver.calls, forged=receiver.forged),
        ]

    def figures(self) -> dict[str, int]:
        self._look()
        progress = self._rig.observer.progress()
        calls = Counter(call.id for call in self._rig.receiver.calls)
        return {
            "jobs": len(self._producer.accepted),
            "pages": self._over,
            "redone": progress.redone if progress else 0,
            "refused_submits": self._producer.errors,
            "callbacks": len(calls),
            "repeated_callbacks": sum(count > 1 for count in calls.values()),
            "refused_callbacks": self._rig.receiver.errors,
        }

    def rows(self) -> list[Row]:
        injections = self._director.injections
        redone = [
            self._rig.observer.begun_again(injection.blow.held) or 0 if injection.blow else 0
            for injection in injections
        ]
        return rows_of(injections, redone, self._task.slack)

    def _has_room(self) -> bool:
        is_short = self._open < min(_BACKLOG, self._task.pages // 2)
        return self._director.wants_submits or (is_short and not self._is_enough())

    def _is_enough(self) -> bool:
        return self._director.finished and self._over >= self._task.pages

    def _is_stalled(self) -> bool:
        return time.monotonic() - self._moved_at > _STALLED_S

    def _is_settled(self) -> bool:
        self._look()
        progress = self._rig.observer.progress()
        at_rest = progress is not None and progress.open_jobs == progress.pending_callbacks == 0
        return at_rest and not self._producer.busy

    def _look(self) -> None:
        progress = self._rig.observer.progress()
        if progress:
            self._open = progress.open_parts
        if progress and progress.over != self._over:
            self._over, self._moved_at = progress.over, time.monotonic()
            self._progress.update(
                self._bar, completed=progress.over, total=max(self._task.pages, progress.over)
            )

    def _keys_left(self) -> list[str] | None:
        try:
            with self._rig.redis() as redis:
                return auditor.keys_left(redis)
        except RedisError:
            return None


def main() -> None:
    """Run one soak and tell what came of it."""
    arguments = _arguments()
    errors = Console(stderr=True, highlight=False)
    errors.print(f"Seed {arguments.seed} (make soak SEED={arguments.seed} plays it again)")
    for name in [name for name in os.environ if name.startswith("PECIA_")]:
        del os.environ[name]
    strikes = plan(
        arguments.seed, pages=arguments.pages, faults=arguments.fault or list(FAULTS), count=arguments.strikes
    )
    errors.print("Starting a fleet of two engine workers behind proxies …")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        report = soak(arguments, strikes, progress)
    if arguments.json:
        print(json.dumps(report.as_json()))  # noqa: T201  what was asked for
    else:
        report.print(Console(highlight=False))
    sys.exit(0 if report.kept else 1)


def _seconds(number: str) -> timedelta:
    return timedelta(seconds=float(number))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="what to play again")
    parser.add_argument(
        "--pages", type=int, default=2_000, help="at least so many are read (default: %(default)s)"
    )
    parser.add_argument("--strikes", type=int, default=40, help="faults in all (default: %(default)s)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this kind; may be repeated")
    parser.add_argument(
        "--engine", choices=("simulated", "simulated:instant", "rapidocr"), default="simulated"
    )
    parser.add_argument(
        "--lease", type=_seconds, default="15", help="PECIA_LEASE in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--slack",
        type=_seconds,
        default="0",
        help="seconds beyond each limit, for a machine that is busy with others",
    )
    parser.add_argument("--logs", type=Path, help="copy the workers' logs to this directory in the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    main()
