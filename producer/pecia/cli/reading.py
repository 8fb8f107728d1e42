"""`pecia read`: files in, ids or text out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pecia.cli import generation, results, submitting, values
from pecia.cli.inputs import inputs
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType, Prefer, ReadDocument, Witness

Kind = Annotated[DocumentType, typer.Option("--type", help="What the documents are.")]
Language = Annotated[str | None, typer.Option(help="ISO 639-1, as in en. Default: the engine's own.")]
Pages = Annotated[
    str | None, typer.Option(metavar="PAGES", help="Which to read, as in 1-3,7,9-. Default: all of them.")
]
AskPassword = Annotated[bool, typer.Option("--password", help="Ask for the password that opens the PDFs.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Its first line is the password that opens the PDFs.",
    ),
]
Prepare = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS",
        help="How pages are made ready: of blank, orient, deskew, downscale, with commas; or none. "
        "Default: as the fleet is set.",
    ),
]
From = Annotated[
    Prefer,
    typer.Option(
        help="What pages of PDFs are read from: the text that the file brings, where it can be trusted (auto) or "
        "wherever there is any (layer), or the pixels."
    ),
]
ByWitness = Annotated[
    Witness | None,
    typer.Option(
        help="Who reads pages beside a language model, to find what it swapped, made up or left out: the PDF's own "
        "text (layer), the CPU engine (ocr), what there is (auto), or none. Default: as the fleet is set."
    ),
]
Fields = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", exists=True, dir_okay=False, help="JSON schema that each page fills beside its text."
    ),
]

Instructions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="What a language model is told about each page, in place of the fleet's words.",
    ),
]


def read(
    files: submitting.Files,
    *,
    priority: submitting.Priority = Lane.NORMAL,
    document_type: Kind = DocumentType.MIXED,
    language: Language = None,
    pages: Pages = None,
    ask_password: AskPassword = False,
    password_file: PasswordFile = None,
    prepare: Prepare = None,
    prefer: From = Prefer.AUTO,
    witness: ByWitness = None,
    fields: Fields = None,
    instructions: Instructions = None,
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
    batch: submitting.InBatch = None,
    metadata: submitting.Metadata = None,
    webhook: submitting.NoticeUrl = None,
    not_before: submitting.NotBefore = None,
    expires: submitting.Expires = None,
    block: submitting.Block = False,
    wait: submitting.Wait = False,
    timeout: submitting.Timeout = None,
    form: results.Form = None,
    target: results.Target = None,
    force: results.Force = False,
    as_json: submitting.AsJson = False,
) -> None:
    """Read documents: pictures, TIFF, PDF, DICOM. Prints the jobs' ids, or with --wait their text.

    Example: `pecia read scan.png report.pdf inbox/ --wait`
    """
    language, schema = values.language(language), values.json_object(fields, "--fields")
    words = values.instructions(instructions)
    pages, steps = values.pages(pages), values.preparation(prepare)
    password = values.password(password_file, ask=ask_password)
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
            pages=pages,
            password=password,
            prepare=steps,
            prefer=prefer,
            witness=witness,
            fields=schema,
            instructions=words,
            preset=preset,
            options=options,
            adapter=adapter,
            cache=not no_cache,
        )
        for one in found
    )
    when = {"not_before": not_before, "expires": expires}
    told = submitting.told(
        batch=batch, priority=priority, key=key, metadata=metadata, webhook=webhook, block=block, **when
    )
    delivery = results.Delivery(form=form, target=target, force=force)
    wanted = submitting.Wanted(wait=wait, timeout=timeout, as_json=as_json, delivery=delivery)
    wanted.check(ReadDocument.kind, len(found))
    submitting.run(tasks, found, told, wanted)
