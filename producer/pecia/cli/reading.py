"""`pecia read`: files in, ids or text out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pecia.cli import endings, generation, output, values
from pecia.cli.following import follow
from pecia.client import Client
from pecia.errors import JobTimeoutError
from pecia.job import JobGroup
from pecia_schemas.results import Document
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType, ReadDocument

Files = Annotated[list[Path], typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True)]
Priority = Annotated[Lane, typer.Option(help="Lane to wait in.")]
Kind = Annotated[DocumentType, typer.Option("--type", help="What the documents are.")]
Language = Annotated[str | None, typer.Option(help="ISO 639-1, as in en. Default: the engine's own.")]
Fields = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="JSON schema that each page fills beside its text."
    ),
]
Key = Annotated[
    str | None, typer.Option(help="Idempotency key; with several files the n-th gets KEY/n, from 0.")
]
Metadata = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept with the job.")]
NoticeUrl = Annotated[str | None, typer.Option("--webhook", help="URL that is told when a job is over.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait, then print the text, page by page.")]
Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds to wait; the jobs go on.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each document.")]


def read(
    files: Files,
    *,
    priority: Priority = Lane.NORMAL,
    document_type: Kind = DocumentType.MIXED,
    language: Language = None,
    fields: Fields = None,
    preset: generation.PresetOption = None,
    temperature: generation.Temperature = None,
    top_p: generation.TopP = None,
    top_k: generation.TopK = None,
    repetition_penalty: generation.RepetitionPenalty = None,
    max_output_tokens: generation.MaxOutputTokens = None,
    seed: generation.Seed = None,
    adapter: generation.Adapter = None,
    key: Key = None,
    metadata: Metadata = None,
    webhook: NoticeUrl = None,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Read documents: pictures, TIFF or PDF. Prints the jobs' ids, or with --wait their text.

    Example: `pecia read scan.png report.pdf --wait`
    """
    language, form = values.language(language), values.json_object(fields, "--fields")
    options = generation.options(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=repetition_penalty,
        max_output_tokens=max_output_tokens,
        seed=seed,
    )
    tasks = [
        ReadDocument(
            file,
            document_type=document_type,
            language=language,
            fields=form,
            preset=preset,
            options=options,
            adapter=adapter,
        )
        for file in files
    ]
    names = [str(file) for file in files]
    with Client() as client:
        group = _submit(
            client, tasks, key, priority=priority, metadata=values.metadata(metadata), webhook=webhook
        )
        if wait:
            _wait(group, names, timeout, as_json=as_json)
        else:
            _receipts(group, names, as_json=as_json)


def _submit(
    client: Client,
    tasks: Sequence[ReadDocument],
    key: str | None,
    *,
    priority: Lane,
    metadata: dict[str, str],
    webhook: str | None,
) -> JobGroup[Document]:
    if key is not None and len(tasks) == 1:
        job = client.submit(
            tasks[0], priority=priority, idempotency_key=key, metadata=metadata, webhook=webhook
        )
        return client.group([job])
    return client.submit_many(
        tasks, priority=priority, idempotency_prefix=key, metadata=metadata, webhook=webhook
    )


def _receipts(group: JobGroup[Document], names: Sequence[str], *, as_json: bool) -> None:
    for job, name in zip(group, names, strict=True):
        if as_json:
            output.json_line(output.document_json(job, name))
        else:
            typer.echo(job.id)


def _wait(group: JobGroup[Document], names: Sequence[str], timeout: float | None, *, as_json: bool) -> None:
    """Print every document, finished or not, before a timeout ends the command."""
    late: JobTimeoutError | None = None
    try:
        follow(group, timeout)
    except JobTimeoutError as error:
        late = error
    for job, name in zip(group, names, strict=True):
        if as_json:
            output.json_line(output.document_json(job, name))
        else:
            output.document_text(job, name)
    if late is not None:
        raise late
    raise typer.Exit(endings.of_states(job.state for job in group))
