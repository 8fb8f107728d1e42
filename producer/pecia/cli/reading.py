"""`pecia read`: files in, ids or text out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pecia.cli import generation, submitting, values
from pecia.cli.inputs import inputs
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType, ReadDocument

Kind = Annotated[DocumentType, typer.Option("--type", help="What the documents are.")]
Language = Annotated[str | None, typer.Option(help="ISO 639-1, as in en. Default: the engine's own.")]
Fields = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="JSON schema that each page fills beside its text."
    ),
]


def read(
    files: submitting.Files,
    *,
    priority: submitting.Priority = Lane.NORMAL,
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
    no_cache: submitting.NoCache = False,
    key: submitting.Key = None,
    metadata: submitting.Metadata = None,
    webhook: submitting.NoticeUrl = None,
    not_before: submitting.NotBefore = None,
    expires: submitting.Expires = None,
    wait: submitting.Wait = False,
    timeout: submitting.Timeout = None,
    as_json: submitting.AsJson = False,
) -> None:
    """Read documents: pictures, TIFF, PDF, DICOM. Prints the jobs' ids, or with --wait their text.

    Example: `pecia read scan.png report.pdf inbox/ --wait`
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
    found = inputs(files, lambda media: not media.is_video)
    tasks = (
        ReadDocument(
            one.source,
            document_type=document_type,
            language=language,
            fields=form,
            preset=preset,
            options=options,
            adapter=adapter,
            cache=not no_cache,
        )
        for one in found
    )
    told = submitting.Told(
        priority=priority,
        metadata=values.metadata(metadata),
        webhook=webhook,
        key=key,
        not_before=values.moment(not_before, "--not-before"),
        expires=values.moment(expires, "--expires"),
    )
    submitting.run(tasks, [one.name for one in found], told, wait=wait, timeout=timeout, as_json=as_json)
