"""A task knows the type of its result, and a type checker knows it from the task: both clients hand it through.

The functions are read by mypy and pyright, which fail if a type is another one; no test runs them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, assert_type, get_args
from uuid import UUID

from pecia import (
    AsyncClient,
    AsyncJob,
    AsyncJobGroup,
    Captions,
    CaptionVideo,
    Client,
    Document,
    Job,
    JobEvent,
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


async def of_the_asynchronous_client(client: AsyncClient, job_id: UUID) -> None:
    job = await client.submit(ReadDocument(b""))
    assert_type(job, AsyncJob[Document])
    assert_type(await job.result(), Document)
    assert_type(job.pages(), AsyncGenerator[Page, None])
    assert_type(job.events(), AsyncGenerator[JobEvent, None])
    assert_type(await job.wait(), AsyncJob[Document])
    assert_type(await (await client.submit(CaptionVideo(b""))).result(), Captions)
    assert_type(await client.job(job_id), AsyncJob[Any])
    assert_type(await client.job(job_id, ReadDocument), AsyncJob[Document])
    async with client as same:
        assert_type(same, AsyncClient)


async def of_an_asynchronous_group(client: AsyncClient, tasks: AsyncIterator[ReadDocument]) -> None:
    group = await client.submit_many(tasks)
    assert_type(group, AsyncJobGroup[Document])
    assert_type(group[0], AsyncJob[Document])
    assert_type(await group.results(), list[Document])
    assert_type(group.as_completed(), AsyncGenerator[AsyncJob[Document], None])


def test_a_handle_names_its_result_at_run_time_too() -> None:
    assert get_args(Job[Document]) == get_args(AsyncJob[Document]) == (Document,)
    assert get_args(JobGroup[Captions]) == get_args(AsyncJobGroup[Captions]) == (Captions,)
