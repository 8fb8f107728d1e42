"""A task knows the type of its result, and a type checker knows it from the task.

mypy and pyright read the functions, and fail if a type is another one; no test runs them. The
asynchronous client has the same types, for this one is generated from it.
"""

from collections.abc import Iterator
from typing import Any, assert_type, get_args
from uuid import UUID

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
)


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
