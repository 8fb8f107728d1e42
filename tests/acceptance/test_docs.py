"""What README, tutorial, examples and pages say is done as it stands there, from top to bottom, against a real fleet.

Pages that need no fleet are run by tests/unit/test_pages.py.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pecia import ReadDocument
from pecia_schemas.tasks import DocumentType
from pecia_workers.media.samples import sample_document, write_exhibits
from tests.shared.chat_server import Behaviour, serving
from tests.shared.command import ran
from tests.shared.fixture_types import RunFleet
from tests.shared.hand_made_pdfs import text_pdf
from tests.shared.http_doubles import free_port, listens
from tests.shared.limits import WAIT_S, eventually
from tests.shared.pictures import note
from tests.shared.snippets import GAP, ROOT, agrees, blocks, commands, fenced

pytestmark = pytest.mark.gate

PAGES: dict[str, list[str]] = {
    "README.md": [
        f"1 ok Hospital Chart\n2 {GAP}\n3 {GAP}\n4 {GAP}",
        "(1,) prescription 1\n(3,) diagnosis 2\n(4,) diagnosis 1\n",
    ],
    "docs/tutorial.md": [f"1 Hospital Chart\n{GAP}4 pages, succeeded\n", f"damaged\n{GAP}scan it again{GAP}"],
    "docs/mcp.md": ["succeeded\n[1]\n"],
    "docs/watch-folder.md": [],
    "docs/clients.md": [f"{GAP}1 ok\n", f"{GAP}1 ok\n", "ok\n"],
    "docs/results.md": [
        f"ok 1.0 ocr\n{GAP}Haemoglobin,10.7,g/dL{GAP}",
        "",
        "pages.xml\n",
        f"<!-- page 1: ok -->\n\n{GAP}",
    ],
}
"""Pages, and what each of their Python snippets prints."""

FIELDS = {"drug": "Amoxicillin 500 mg", "refills": 2}


@dataclass(frozen=True)
class Desk:
    """A user's shell: this virtual environment on the path, a fleet in the settings, documents in the directory."""

    directory: Path
    fleet: Any

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "WEBHOOK_SECRET": self.fleet.webhook_secret, "PYTHONUNBUFFERED": "1"}
        return {**self.fleet.environment, **own}

    def run(self, *command: str) -> str:
        done = ran(*command, cwd=self.directory, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, program: str) -> str:
        """Run a program from a file, as a user has it: what draws pages must not run it again."""
        (self.directory / "program.py").write_text(program)
        return self.run(sys.executable, "-W", "error", "program.py")


@pytest.fixture
def desk(fleet: Any, tmp_path: Path) -> Desk:
    return Desk(tmp_path, fleet)


def draw_papers(directory: Path) -> None:
    """Draw what `pecia sample papers` does, for a page that takes them as given."""
    papers = directory / "papers"
    papers.mkdir()
    write_exhibits(papers)


@pytest.mark.parametrize("name", PAGES)
def test_every_snippet_and_command_prints_what_the_page_shows(desk: Desk, name: str) -> None:
    page = (ROOT / name).read_text()
    outputs = iter(PAGES[name])
    if not any("$ pecia sample" in terminal for terminal in blocks(page, "console")):
        draw_papers(desk.directory)
    for language, block in fenced(page):
        if language == "python":
            printed = desk.python(block)
            assert agrees(printed, next(outputs)), printed
        for command, shown in commands(block) if language == "console" else ():
            printed = desk.run("/bin/sh", "-c", command)
            assert agrees(printed, shown), f"{command}\n{printed}"
    assert list(outputs) == []


@pytest.fixture
def desk_with_a_model(run_fleet: RunFleet, tmp_path: Path) -> Iterator[Desk]:
    note().save(tmp_path / "scan.png")
    schema = {"type": "object", "properties": {"drug": {"type": "string"}, "refills": {"type": "integer"}}}
    (tmp_path / "prescription.json").write_text(json.dumps(schema))
    with (
        serving(Behaviour(form=json.dumps(FIELDS))) as server,
        run_fleet("reading", engine="openai", engine_url=server.url, decode_processes=1) as fleet,
    ):
        yield Desk(tmp_path, fleet)


def test_fields_are_printed_as_the_page_on_reading_shows(desk_with_a_model: Desk) -> None:
    page = (ROOT / "docs/reading.md").read_text()
    (program,), (command,) = blocks(page, "python"), blocks(page, "sh")
    assert desk_with_a_model.python(program).splitlines() == [
        "Amoxicillin 500 mg",
        "drug='Amoxicillin 500 mg' refills=2",
    ]
    (printed,) = json.loads(desk_with_a_model.run("/bin/sh", "-c", command))["pages"]
    assert printed == {"number": 1, "text": "Amoxicillin 500 mg", "verdict": "ok", "fields": FIELDS}


def test_the_programs_about_grounding_tell_of_every_leaf(run_fleet: RunFleet, tmp_path: Path) -> None:
    draw_papers(tmp_path)
    (tmp_path / "invoice.pdf").write_bytes(text_pdf(["Invoice 4711, total 12.50 EUR"]))
    filled = json.dumps({"number": "4711", "date": None, "total": 99.5, "items": []})
    own = {"decode_processes": 1, "witness": "layer"}
    with (
        serving(Behaviour(form=filled)) as server,
        run_fleet("grounding", engine="openai", engine_url=server.url, **own) as fleet,
    ):
        first, second = blocks((ROOT / "docs/grounding.md").read_text(), "python")
        Desk(tmp_path, fleet).python(first)
        merged, *leaves = Desk(tmp_path, fleet).python(second).splitlines()
    assert merged == "number='4711' date=None total=99.5 items=[]"
    assert {(leaf.split()[0], "agrees" in leaf, "not_on_page" in leaf) for leaf in leaves} == {
        ("/number", True, False),
        ("/date", False, False),
        ("/total", False, True),
    }


def shown(notebook: Path) -> list[str]:
    """Return what each cell of a notebook shows, as text. What a program prints comes in any number of pieces."""
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [cell.get("outputs", ()) for cell in cells]
    return [
        "".join("".join(output.get("text") or output["data"]["text/plain"]) for output in cell)
        for cell in outputs
    ]


def run_notebook(desk: Desk, name: str) -> None:
    """Run a notebook of the examples from top to bottom: each cell shows what is stored in it."""
    shutil.copy(ROOT / "examples" / name, desk.directory)
    desk.run("jupyter", "execute", "--inplace", name)
    assert shown(desk.directory / name) == shown(ROOT / "examples" / name)


def test_the_notebook_about_a_batch_shows_what_is_stored_in_it(desk: Desk) -> None:
    run_notebook(desk, "batch.ipynb")


def test_the_notebook_about_fields_shows_what_a_model_misreads(run_fleet: RunFleet, tmp_path: Path) -> None:
    text = sample_document(DocumentType.PRESCRIPTION).text
    medicines = re.findall(r"(?m)^\d\. (.+)$", text.replace("Ramipril 5 mg", "Ramipril 50 mg"))
    form = json.dumps({"patient": "Carla Mockridge", "date": "24.03.2026", "medicines": medicines})
    own = {"decode_processes": 1, "witness": "ocr"}
    with (
        serving(Behaviour(text=text, form=form)) as server,
        run_fleet("notebook", engine="openai", engine_url=server.url, **own) as fleet,
    ):
        run_notebook(Desk(tmp_path, fleet), "first_page.ipynb")


@pytest.mark.parametrize("example", ["read_documents.py", "read_documents_async.py"])
def test_the_examples_tell_texts_and_failures(desk: Desk, example: str) -> None:
    draw_papers(desk.directory)
    files = ("papers/lab.png", "papers/chart.pdf", "papers/damaged.png")
    printed = desk.run(sys.executable, "-W", "error", str(ROOT / "examples" / example), *files)
    assert {line.partition(":")[0] for line in printed.splitlines()} == {Path(file).name for file in files}
    assert "chart.pdf: 4 pages, 'Hospital Chart" in printed
    assert "damaged.png: damaged: " in printed


def test_the_examples_receiver_is_called_back_and_believes_it(desk: Desk) -> None:
    program = (ROOT / "examples" / "receive_callbacks.py").read_text()
    (written,) = set(re.findall(r"\b8\d{3}\b", program))
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", program.replace(written, str(port))],
        env=desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as receiver:
        try:
            eventually(lambda: listens("127.0.0.1", port))
            draw_papers(desk.directory)
            task = ReadDocument(desk.directory / "papers/lab.png")
            desk.fleet.client.submit(task, webhook=f"http://127.0.0.1:{port}/")
            assert receiver.stdout is not None
            told = receiver.stdout.readline().split()
        finally:
            receiver.kill()
    assert (told[0], told[-2], told[-1]) == ("job.succeeded", "1", "pages")


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "uvicorn", "--app-dir", str(ROOT / "examples"), "fastapi_app:app", "--port"),
        (str(ROOT / "examples" / "django_app.py"), "runserver", "--noreload"),
    ],
    ids=["fastapi", "django"],
)
def test_an_application_stores_the_text_of_a_verified_callback_once(
    desk: Desk, command: tuple[str, ...]
) -> None:
    port, client = free_port(), desk.fleet.client
    draw_papers(desk.directory)
    callbacks = {"CALLBACK_URL": f"http://127.0.0.1:{port}/callbacks"}
    with (
        subprocess.Popen(
            (sys.executable, *command, str(port)), env=desk.environment | callbacks, cwd=desk.directory
        ) as server,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as browser,
    ):
        try:
            eventually(lambda: listens("127.0.0.1", port))
            with (desk.directory / "papers/lab.png").open("rb") as file:
                sent = browser.post("/scans", files={"file": file})
            assert sent.status_code == 202, sent.text
            scan = f"/scans/{sent.json()['scan']}"
            eventually(lambda: browser.get(scan).json()["state"] == "succeeded")
            assert "Haemoglobin" in browser.get(scan).json()["text"]
            assert browser.post("/callbacks", content=b"{}").status_code == 401
            with closing(sqlite3.connect(desk.directory / "scans.sqlite3")) as database, database:
                (table,) = database.execute(
                    "SELECT name FROM sqlite_master WHERE name LIKE '%scan%'"
                ).fetchone()
                database.execute(f"UPDATE {table} SET text = 'as a person corrected it'")  # noqa: S608
            (job,) = (job for job in client.jobs(limit=5) if f"/scans/{job.metadata.get('scan')}" == scan)
            (delivery,) = eventually(lambda: client.deliveries(job=job, state="delivered"))
            client.replay([delivery])
            eventually(lambda: len(client.delivery(delivery.id).attempts) == 2)
            assert browser.get(scan).json()["text"] == "as a person corrected it"
        finally:
            server.terminate()
