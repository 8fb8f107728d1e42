"""The client's verbs as a person or a script runs them: real stores, a fleet that waits for orders.

A process runs only where it is the subject: on a terminal, under Ctrl-C, with settings of its own.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from PIL import Image

from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.installing import install_command
from pecia_schemas.results import TokenUsage
from pecia_schemas.storable import REVISION
from tests.shared.command import run_pecia
from tests.shared.limits import WAIT_S, eventually

_PECIA = (sys.executable, "-m", "pecia")

ALL_WELL = "2 documents, 2 pages read: none needs a review."
DAMAGED = Failure.of(FailureCode.DAMAGED)


@dataclass
class Screen:
    """What a command shows on its terminal."""

    terminal: int
    shown: str = ""

    def read_until(self, wanted: str) -> str:
        """Return all that was shown until now, as soon as it holds this pattern."""
        while not re.search(wanted, self.shown):
            ready, _, _ = select.select([self.terminal], [], [], 60)
            assert ready, f"nothing new on the terminal after {self.shown[-500:]!r}"
            self.shown += os.read(self.terminal, 65_536).decode(errors="replace")
        return self.shown


@dataclass(frozen=True)
class Shell:
    """Where a person types."""

    stores: dict[str, str]
    directory: Path
    scribe: Any = None

    def run(self, *arguments: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        with chdir(self.directory):
            return run_pecia(*arguments, env=self.stores, stdin=stdin)

    def run_until(self, step: Callable[[], object], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that waits, and meanwhile a step of the fleet until it finds something to do."""
        with ThreadPoolExecutor(1) as thread, chdir(self.directory):
            ending = thread.submit(run_pecia, *arguments, env=self.stores)
            while not ending.done() and not step():
                time.sleep(0.02)
            return ending.result()

    def start(self, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*_PECIA, *arguments],
            cwd=self.directory,
            env=os.environ | self.stores,
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    @contextmanager
    def terminal(self, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
        """Start a command on a terminal of its own, wide enough for whole rows."""
        ours, its = os.openpty()
        wide = os.environ | self.stores | {"COLUMNS": "200", "TERM": "xterm"}
        process = subprocess.Popen(
            [*_PECIA, *arguments], cwd=self.directory, env=wide, stdout=its, stderr=its
        )
        os.close(its)
        try:
            yield process, Screen(ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def draw(self, *names: str) -> None:
        for number, name in enumerate(names):
            Image.new("L", (80, 60), 255 - number).save(self.directory / name)

    def submit(self, *names: str) -> list[str]:
        self.draw(*names)
        return self.run("read", *names).stdout.split()

    def read_all(self) -> int:
        """Have the fleet read what waits; return how much that was."""
        return self._end_all(text="Blutdruck 120/80", usage=TokenUsage(prompt=900))

    def fail_all(self) -> int:
        return self._end_all()

    def _end_all(self, **read: Any) -> int:
        end = partial(self.scribe.read, **read) if read else self.scribe.fail
        waiting = self.scribe.house.query("SELECT job_id FROM parts WHERE state = 'queued'")
        for (job_id,) in waiting:
            end(job_id)
        return len(waiting)


@pytest.fixture
def shell(stores: dict[str, str], tmp_path: Path, scribe: Any) -> Shell:
    directory = tmp_path / "scans"
    directory.mkdir()
    return Shell(stores, directory, scribe)


def one_line(process: subprocess.CompletedProcess[str]) -> str:
    (line,) = process.stderr.splitlines()
    return line


def test_read_prints_the_ids_of_its_jobs_in_the_order_of_the_files(shell: Shell) -> None:
    shell.draw("a.png", "b.png")
    read = shell.run("read", "b.png", "a.png", "--priority", "bulk", "--metadata", "ward=7")
    ids = [UUID(line) for line in read.stdout.splitlines()]
    listed = [
        json.loads(line) for line in shell.run("list", "--metadata", "ward=7", "--json").stdout.splitlines()
    ]
    assert (read.returncode, read.stderr) == (0, "")
    assert [UUID(job["job"]) for job in listed] == sorted(ids, reverse=True)
    assert {job["lane"] for job in listed} == {"bulk"}


def test_read_with_wait_and_json_prints_one_object_for_each_document_and_nothing_else(shell: Shell) -> None:
    shell.draw("a.png", "b.png")
    read = shell.run_until(shell.read_all, "read", "a.png", "b.png", "--wait", "--json")
    documents = [json.loads(line) for line in read.stdout.splitlines()]
    assert (read.returncode, one_line(read)) == (0, f"pecia: {ALL_WELL}")
    assert [document["file"] for document in documents] == ["a.png", "b.png"]
    assert documents[0] == {
        "job": documents[0]["job"],
        "file": "a.png",
        "state": "succeeded",
        "pages": [{"number": 1, "text": "Blutdruck 120/80", "verdict": "ok"}],
        "progress": {"total": 1, "done": 1, "failed": 0, "cancelled": 0},
        "failure": None,
        "erased_at": None,
    }


def test_results_are_written_beside_each_other_under_the_names_of_the_files(shell: Shell) -> None:
    shell.draw("a.png", "b.png")
    how = ("--wait", "--format", "markdown", "-o", "texts")
    read = shell.run_until(shell.read_all, "read", "a.png", "b.png", *how)
    assert (read.stdout, one_line(read)) == ("", f"pecia: {ALL_WELL}")
    written = sorted((shell.directory / "texts").iterdir())
    assert [path.name for path in written] == ["a.md", "b.md"]
    assert "Blutdruck 120/80" in written[0].read_text()


def test_pages_are_printed_as_they_are_read_and_stay_after_a_cancel(shell: Shell) -> None:
    (shell.directory / "long.pdf").write_bytes(b"%PDF-1.7")
    reading = shell.start("read", "long.pdf", "--wait", "--json", "--stream")
    assert reading.stdout is not None
    while not (queued := shell.scribe.house.query("SELECT id FROM jobs")):
        assert reading.poll() is None
    ((job,),) = queued
    shell.scribe.cut(job, 400)
    for page in range(2):
        shell.scribe.read(job, page)
        line = json.loads(reading.stdout.readline())
        assert (line["file"], line["number"], line["text"]) == ("long.pdf", page + 1, "text")
    shell.scribe.read(job, 17)
    meanwhile = shell.run("result", str(job))
    assert (meanwhile.returncode, meanwhile.stdout.count("--- long.pdf, page")) == (3, 3)
    assert one_line(meanwhile).startswith("long.pdf: running, 3 of 400 pages are read; `pecia wait")

    cancelled = f"long.pdf: cancelled, 3/400 read; `pecia result {job}` prints what is read\n"
    assert shell.run("cancel", str(job)).stdout == cancelled
    out, err = reading.communicate(timeout=WAIT_S)
    assert [json.loads(line).get("number", "end") for line in out.splitlines()] == [18, "end"]
    assert (reading.returncode, err.splitlines()[-1]) == (
        1,
        f"pecia: 1 document, 3 pages read: 1 not finished. Next: `pecia status {job}`.",
    )
    assert re.search(r"cancelled +3/400 ", shell.run("status", str(job)).stdout)
    saved = shell.run("result", str(job), "-o", "read.txt")
    assert (saved.returncode, one_line(saved)) == (
        1,
        f"pecia: long.pdf: cancelled, 3 of 400 pages are read; `pecia retry {job}` reads the rest",
    )
    assert (shell.directory / "read.txt").read_text() == "text\n\ftext\n\ftext\n"


def test_a_file_that_is_refused_is_named_and_the_others_are_read(shell: Shell) -> None:
    shell.draw("a.png", "b.png")
    files = ("a.png", "http://ward:secret@archive.example/7.pdf", "b.png")
    read = shell.run_until(shell.read_all, "read", *files, "--wait", "--json")
    assert read.returncode == 2
    assert [json.loads(line)["file"] for line in read.stdout.splitlines()] == ["a.png", "b.png"]
    refused, closing = read.stderr.splitlines()
    assert (files[1] in refused, closing) == (True, f"pecia: {ALL_WELL}")


def test_a_full_lane_ends_with_4_without_a_wait(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_MAX_BACKLOG", '{"normal": 1}')
    (first,) = shell.submit("a.png")
    shell.draw("b.png")
    refused = shell.run("read", "b.png")
    assert refused.returncode == 4
    assert "try again in" in one_line(refused)
    waited = shell.run_until(shell.read_all, "read", "b.png", "--block", "--json")
    assert json.loads(waited.stdout)["job"] != first


def test_a_document_that_failed_is_told_and_ends_with_1(shell: Shell) -> None:
    shell.draw("a.png")
    read = shell.run_until(shell.fail_all, "read", "a.png", "--wait", "--json")
    assert read.returncode == 1
    assert json.loads(read.stdout)["failure"] == {"code": DAMAGED.code, "message": DAMAGED.message}


def test_wait_ends_with_what_became_of_the_jobs(shell: Shell) -> None:
    (done,) = shell.submit("a.png")
    shell.read_all()
    (broken,) = shell.submit("b.png")
    shell.fail_all()
    assert shell.run("wait", done).returncode == 0
    assert shell.run("wait", done, broken).returncode == 1
    (late,) = shell.submit("c.png")
    waited = shell.run("wait", late, "--timeout", "0.1", "--json")
    assert (waited.returncode, json.loads(waited.stdout)["state"]) == (3, "queued")
    assert "it goes on" in one_line(waited)


def test_status_and_list_show_whole_rows_even_in_a_pipe(shell: Shell) -> None:
    (job,) = shell.submit("a.png")
    for shown in (shell.run("status", job), shell.run("list", "--state", "queued", "--since", "1h")):
        (row,) = [line for line in shown.stdout.splitlines() if job in line]
        (hint,) = [line for line in shown.stdout.splitlines() if "waiting:" in line]
        assert re.search(r"document\.read +normal +queued +0/1", row)
        assert hint == "a.png waiting: no running worker reads pages; start `pecia worker engine`"
        assert "\x1b" not in shown.stdout
    assert job not in shell.run("list", "--state", "failed").stdout
    assert "reads pages" in json.loads(shell.run("status", job, "--json").stdout)["hint"]
    shell.read_all()
    assert json.loads(shell.run("status", job, "--json").stdout)["hint"] is None


def test_the_status_of_a_job_says_why_it_failed_and_where_its_time_went(shell: Shell) -> None:
    (shell.directory / "long.pdf").write_bytes(b"%PDF-1.7")
    job = UUID(shell.run("read", "long.pdf").stdout.strip())
    shell.scribe.cut(job, 4)
    shell.scribe.read(job, 0, timings={"queued": 2.0, "decode": 0.0, "engine": 0.0})
    shell.scribe.fail(job, 1)
    shown = shell.run("status", str(job)).stdout
    assert " parts: 2 queued, 1 done, 1 failed\n time of all parts: waited 2.0 s each" in shown
    assert re.search(
        r"cut \d+\.\d s, decoded 0\.0 s, engine 0\.0 s, witness and commit \d+\.\d s$", shown.strip()
    )
    assert json.loads(shell.run("status", str(job), "--json").stdout)["parts"]["queued"] == 2

    (broken,) = shell.submit("b.png")
    shell.scribe.fail(UUID(broken))
    shown = shell.run("status", broken).stdout
    assert f"b.png: damaged: {DAMAGED.message}" in shown
    assert re.search(r" \d+\.\d s +damaged", shown)
    shell.run("retry", broken)
    assert re.search(r"queued +0/1 .* -$", shell.run("status", broken).stdout, re.MULTILINE)


def test_the_id_of_a_part_shows_its_job(shell: Shell, database_url: str) -> None:
    job, _ = shell.submit("a.png", "b.png")
    with psycopg.connect(database_url) as connection:
        ((part,),) = connection.execute("SELECT id FROM parts WHERE job_id = %s", (job,)).fetchall()
    assert json.loads(shell.run("status", str(part), "--json").stdout)["job"] == job


def test_doctor_finds_what_waits_in_vain(shell: Shell) -> None:
    shell.submit("a.png", "b.png")
    examined = shell.run("doctor", "--json")
    findings = {one["subject"]: one for one in map(json.loads, examined.stdout.splitlines())}
    assert examined.returncode == 4
    assert findings["waiting to read"] == {
        "subject": "waiting to read",
        "ok": False,
        "detail": "2: no running worker reads pages; start `pecia worker engine`",
    }


def test_doctor_tells_what_the_licence_of_a_running_model_shuts_out(shell: Shell, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO workers (name, role, stages, host, pid, engine, capabilities, seen_at)"
            " VALUES ('gpu-0', 'engine', '{read}', 'here', 1, 'vllm', '{\"model\": \"rednote-hilab/dots.ocr\"}',"
            " now() + interval '1 hour')"
        )
    findings = map(json.loads, shell.run("doctor", "--json").stdout.splitlines())
    (worker,) = [finding["detail"] for finding in findings if finding["subject"] == "gpu-0"]
    assert worker.endswith("Its licence forbids health data without a lawful basis and anonymisation.")


@pytest.mark.parametrize(
    ("schema", "verdict"), [("0001", "older: run `pecia migrate`"), ("9999", "newer: upgrade Pecia")]
)
def test_doctor_says_what_to_do_where_the_tables_are_of_another_version(
    shell: Shell, empty_database_url: str, schema: str, verdict: str
) -> None:
    other = Shell(shell.stores | {"PECIA_DATABASE_URL": empty_database_url}, shell.directory)
    assert other.run("migrate").returncode == 0
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [schema])
    examined = other.run("doctor", "--json")
    tables = json.loads(examined.stdout.splitlines()[-1])["detail"]
    assert tables == f"schema {schema}, this version's is {REVISION}; {verdict}"
    assert (examined.returncode, examined.stderr) == (4, "")
    migrated = other.run("migrate")
    assert (migrated.returncode, f"'{schema}'" in migrated.stderr) == (4, True)


def test_usage_is_a_table_or_one_object(shell: Shell) -> None:
    shell.submit("a.png", "b.png")
    shell.read_all()
    table = shell.run("usage", "--since", "1h", "--by", "lane").stdout.splitlines()
    assert [line.split()[:7] for line in table if "normal" in line or "all" in line] == [
        ["normal", "2", "2", "2", "0", "0", "1,800"],
        ["all", "2", "2", "2", "0", "0", "1,800"],
    ]
    assert re.search(r"^ prompt +1,800$", shell.run("usage").stdout, re.MULTILINE)
    usage = json.loads(shell.run("usage", "--by", "document_type", "--json").stdout)
    assert [(group["name"], group["jobs"]) for group in usage["groups"]] == [("mixed", 2)]
    assert usage["total"]["tokens"] == {"prompt": 1800, "image": 0, "cached": 0, "output": 0, "wasted": 0}


def test_cancel_ends_open_jobs_and_retry_runs_what_failed_again(shell: Shell) -> None:
    (failed,) = shell.submit("a.png")
    shell.fail_all()
    (open_job,) = shell.submit("b.png")
    cancelled = shell.run("cancel", failed, open_job, "--reason", "wrong file")
    assert cancelled.returncode == 0
    assert cancelled.stdout.splitlines() == ["a.png: was failed already", "b.png: cancelled, 0/1 read"]
    again = json.loads(shell.run("retry", failed, "--json").stdout)
    assert (again["job"], again["state"]) == (failed, "queued")


def test_ids_travel_from_one_command_to_the_next(shell: Shell) -> None:
    submitted = "\n".join(shell.submit("a.png", "b.png"))
    shell.read_all()
    waited = shell.run("wait", "-", "--json", stdin=submitted)
    assert waited.returncode == 0
    assert [json.loads(line)["job"] for line in waited.stdout.splitlines()] == submitted.split()


@pytest.mark.parametrize(
    ("typed", "offered"), [("pecia re", "retry"), ("pecia doc", "doctor"), ("pecia read --pri", "--priority")]
)
def test_a_shell_completes_verbs_and_options(shell: Shell, typed: str, offered: str) -> None:
    completion = {
        "_PECIA_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    told = Shell(shell.stores | completion, shell.directory).run()
    assert offered in told.stdout.split()


def test_colours_are_for_terminals_that_want_them(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = shell.submit("a.png")
    shell.fail_all()
    with shell.terminal("status", job) as (process, screen):
        assert "\x1b[31mfailed" in screen.read_until("damaged")
        process.wait(WAIT_S)
    monkeypatch.setenv("NO_COLOR", "1")
    with shell.terminal("status", job) as (process, screen):
        assert "\x1b[31m" not in screen.read_until("damaged")
        process.wait(WAIT_S)
    assert "\x1b" not in shell.run("status", job).stdout


@pytest.mark.parametrize("left_by", ["the end", "Ctrl-C"])
def test_watch_ends_when_all_open_jobs_are_over_or_it_is_left(shell: Shell, left_by: str) -> None:
    (job,) = shell.submit("a.png")
    with shell.terminal("watch") as (watching, screen):
        shown = screen.read_until(rf"{job}.*queued")
        assert watching.poll() is None
        if left_by == "the end":
            shell.read_all()
            shown = screen.read_until(rf"{job}.*succeeded")
        else:
            watching.send_signal(signal.SIGINT)
        assert watching.wait(WAIT_S) == 0
    assert "Traceback" not in shown


def test_watch_tells_a_program_of_each_change_once(shell: Shell) -> None:
    (job,) = shell.submit("a.png")
    watching = shell.start("watch", job, "--json")
    assert watching.stdout is not None
    changes = [json.loads(watching.stdout.readline())]
    shell.read_all()
    changes += map(json.loads, watching.communicate(timeout=WAIT_S)[0].splitlines())
    states = [one["state"] for one in changes if one["state"] != "running"]  # which a look may miss
    assert states == ["queued", "succeeded"]
    assert {one["job"] for one in changes} == {job}


def test_a_terminal_shows_progress_on_standard_error(shell: Shell) -> None:
    shell.draw("b.png", "a.png")
    (shell.directory / "notes.txt").write_text("call back")
    ours, its = pty.openpty()
    process = shell.start("read", ".", "--wait", "--json", stderr=its)
    os.close(its)
    shown = Screen(ours).read_until("documents.*0/2")
    eventually(shell.read_all)
    out, _ = process.communicate(timeout=WAIT_S)
    os.close(ours)
    assert process.returncode == 0
    assert "skipped 1 of another kind" in shown
    assert "submitted" in shown
    assert [json.loads(line)["file"] for line in out.splitlines()] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["raed"], "Did you mean 'read'?"),
        (["migrat"], "Did you mean 'migrate'?"),
        (["read", "missing.png"], "there is no file"),
        (["read"], "FILE"),
        (["status", "0190b3cx"], "UUID"),
        (["list", "--since", "yesterday"], "2h"),
        (["list", "--metadata", "ward"], "KEY=VALUE"),
        (["list", "--state", "done"], "succeeded"),
        (["usage", "--by", "ward"], "metadata:KEY"),
        (["status", "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"], "pecia list"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_helps(shell: Shell, arguments: list[str], hint: str) -> None:
    process = shell.run(*arguments)
    assert process.returncode == 2
    assert hint in one_line(process)


@pytest.mark.parametrize(
    ("command", "name", "value", "ending"),
    [
        ("list", "PECIA_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/pecia", 4),
        ("list", "PECIA_ENGIN", "hunter2", 2),
        ("worker ingest", "PECIA_PAYLOAD_URL", "", 2),
        ("read a.png", "PECIA_REDIS_URL", "hunter2", 2),
    ],
)
def test_a_setting_that_leads_nowhere_is_named_and_not_quoted(
    shell: Shell, command: str, name: str, value: str, ending: int
) -> None:
    shell.draw("a.png")
    process = Shell(shell.stores | {name: value}, shell.directory).run(*command.split())
    assert process.returncode == ending
    assert name in one_line(process)
    assert "hunter2" not in process.stderr


def test_without_fleet_or_tables_the_command_says_what_to_run(shell: Shell, empty_database_url: str) -> None:
    empty = shell.stores | {"PECIA_DATABASE_URL": empty_database_url}
    for environment, said in (({}, "pecia up"), (empty, "pecia migrate")):
        process = Shell(environment, shell.directory).run("list")
        assert process.returncode == 4
        assert said in one_line(process)


def test_a_verb_whose_extra_is_missing_says_what_to_install(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "other-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[pecia.commands]\nservers = not_installed_anywhere:main\n")
    monkeypatch.syspath_prepend(metadata.parent)
    process = shell.run("servers", "--some", "option")
    assert process.returncode == 4
    assert install_command("workers") in one_line(process)
    assert "servers" in shell.run("--help").stdout
