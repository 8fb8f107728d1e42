"""What users name, of 22 November 2026 (398eae3), is still there, or CHANGELOG.md says that it is not.

`surface.json` is what `surface` returned of that commit. The pages that it reads are generated, or compared with the
code by tests of their own.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type, get_args
from uuid import UUID

import pytest

import pecia
from pecia import (
    AsyncJob,
    AsyncJobGroup,
    Captions,
    CaptionVideo,
    Client,
    Document,
    Job,
    JobGroup,
    Page,
    ReadDocument,
    errors,
)

ROOT = Path(__file__).parents[2]
THEN = json.loads(Path(__file__).with_name("surface.json").read_text())


def found(path: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (ROOT / path).read_text(), flags=re.MULTILINE))


def options() -> set[str]:
    """Return the options of every verb, as `read --wait`."""
    _, *sections = re.split(r"^#+ `pecia ([^`]+)`", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)
    return {
        f"{verb} {option}"
        for verb, text in zip(sections[::2], sections[1::2], strict=True)
        for option in re.findall(r"^\* `(?:-\w, )?(--[\w-]+)", text, flags=re.MULTILINE)
    }


def surface() -> dict[str, set[str]]:
    """Return what users name, by its kind."""
    schemas = json.loads((ROOT / "docs/pecia.schema.json").read_text())["$defs"]
    return {
        "names": found("producer/pecia/__init__.pyi", r"(\w+) as \1\b"),
        "verbs": found("docs/cli.md", r"^#+ `pecia ([^`]+)`"),
        "options": options(),
        "settings": found("docs/settings.md", r"^\| `(PECIA_\w+)`"),
        "metrics": found("docs/metrics.md", r"`(pecia_\w+)[`{]"),
        "failure codes": found("docs/failure-codes.md", r"^\| `(\w+)`"),
        "schema": {
            f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", ())
        },
        "tables": found("docs/tables.md", r"^## `(\w+)`"),
    }


@pytest.mark.parametrize("kind", THEN)
def test_what_is_gone_stands_in_the_changelog(kind: str) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    now = surface()[kind]
    assert len(now) >= len(THEN[kind]) // 2, "the pattern finds nothing any more"
    assert [name for name in THEN[kind] if name not in now and f"`{name.split()[-1]}`" not in changes] == []


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Klient"):
        _ = pecia.Klient  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PeciaError)
    }
    told = {word.strip(":") for word in (errors.__doc__ or "").split() if word.endswith("Error")}
    assert names == told - {"ValueError", "LookupError", "RuntimeError", "TimeoutError"}


# A task knows the type of its result, and a type checker knows it from the task: mypy and pyright read these
# functions, and fail if a type is another one; no test runs them. The asynchronous client has the same types, for the
# blocking one is generated from it.


def of_the_client(client: Client, job_id: UUID) -> None:
    job = client.submit(ReadDocument(b""))
    assert_type(job, Job[Document])
    assert_type(job.result(), Document)
    assert_type(job.pages(), Iterator[Page])
    assert_type(job.wait(), Job[Document])
    assert_type(client.submit(CaptionVideo(b"")).result(), Captions)
    assert_type(client.job(job_id), Job[Any])
    assert_type(client.job(job_id, ReadDocument), Job[Document])


def of_a_group(client: Client, tasks: list[ReadDocument]) -> None:
    group = client.submit_many(tasks)
    assert_type(group, JobGroup[Document])
    assert_type(group[0], Job[Document])
    assert_type(group.results(), list[Document])
    assert_type(group.as_completed(), Iterator[Job[Document]])
    assert_type(client.group([client.submit(CaptionVideo(b""))]), JobGroup[Captions])


def test_a_handle_names_its_result_at_run_time_too() -> None:
    assert get_args(Job[Document]) == get_args(AsyncJob[Document]) == (Document,)
    assert get_args(JobGroup[Captions]) == get_args(AsyncJobGroup[Captions]) == (Captions,)
