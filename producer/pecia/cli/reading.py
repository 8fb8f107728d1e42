"""`pecia read` and `pecia caption`: files in, ids, text or captions out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from pecia.cli import results, submitting, values
from pecia.cli.values import inputs
from pecia_schemas.states import Lane
from pecia_schemas.tasks import (
    CaptionStyle,
    CaptionVideo,
    DocumentType,
    GenerationOptions,
    Prefer,
    Preset,
    ReadDocument,
    Witness,
)

_PANEL = "How a language model writes"

PresetOption = Annotated[
    Preset | None, typer.Option("--preset", help="A way to write, by name.", rich_help_panel=_PANEL)
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, max=2, help="0: greedily, the most likely word.", rich_help_panel=_PANEL),
]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Pick among words that make up this share.", rich_help_panel=_PANEL),
]
TopK = Annotated[
    int | None, typer.Option(min=0, help="Pick among so many words; 0: all.", rich_help_panel=_PANEL)
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(min=0, max=2, help="Above 1: repeat less.", rich_help_panel=_PANEL)
]
MaxOutputTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut an answer here.", rich_help_panel=_PANEL)
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Pick the same words each time.", rich_help_panel=_PANEL)
]
Adapter = Annotated[
    str | None, typer.Option(help="LoRA adapter of the fleet, by name.", rich_help_panel=_PANEL)
]


def generation_options(**changes: float | None) -> GenerationOptions | None:
    """Return what the given options change; None if nothing. Raises `typer.BadParameter`."""
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        return GenerationOptions.model_validate(given) if given else None
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_context=False, include_input=False)
        hint = "--" + str(first["loc"][0]).replace("_", "-")
        raise typer.BadParameter(first["msg"].lower(), param_hint=hint) from None


class CaptionLanguage(StrEnum):
    """What captions are written in."""

    EN = "en"
    KO = "ko"


Style = Annotated[CaptionStyle, typer.Option(help="How much a caption says.")]
InLanguage = Annotated[CaptionLanguage, typer.Option(help="What the captions are written in.")]
Segments = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.1, help="Length of one segment. Default: as the fleet is set."),
]


def caption(
    files: submitting.Files,
    *,
    priority: submitting.Priority = Lane.NORMAL,
    style: Style = CaptionStyle.DETAILED,
    language: InLanguage = CaptionLanguage.EN,
    segments: Segments = None,
    preset: PresetOption = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    repetition_penalty: RepetitionPenalty = None,
    max_output_tokens: MaxOutputTokens = None,
    seed: Seed = None,
    adapter: Adapter = None,
    no_cache: submitting.NoCache = False,
    key: submitting.Key = None,
    batch: submitting.InBatch = None,
    metadata: submitting.Metadata = None,
    webhook: submitting.NoticeUrl = None,
    not_before: submitting.NotBefore = None,
    expires: submitting.Expires = None,
    block: submitting.Block = False,
    wait: submitting.Wait = False,
    timeout: values.Timeout = None,
    form: results.Form = None,
    target: results.Target = None,
    force: results.Force = False,
    as_json: submitting.AsJson = False,
) -> None:
    """Describe what videos show, segment by segment, and as a whole. Prints the jobs' ids, or with --wait the captions.

    Example: `pecia caption gait.mp4 --style brief --wait`
    """
    options = generation_options(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=repetition_penalty,
        max_output_tokens=max_output_tokens,
        seed=seed,
    )
    length = values.seconds(segments, "--segments")
    found = inputs(files, lambda media: media.is_video)
    tasks = (
        CaptionVideo(
            one.source,
            style=style,
            language=language.value,
            segments=length,
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
    wanted.check(CaptionVideo.kind, len(found))
    submitting.run(tasks, found, told, wanted)


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
    preset: PresetOption = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    repetition_penalty: RepetitionPenalty = None,
    max_output_tokens: MaxOutputTokens = None,
    seed: Seed = None,
    adapter: Adapter = None,
    no_cache: submitting.NoCache = False,
    key: submitting.Key = None,
    batch: submitting.InBatch = None,
    metadata: submitting.Metadata = None,
    webhook: submitting.NoticeUrl = None,
    not_before: submitting.NotBefore = None,
    expires: submitting.Expires = None,
    block: submitting.Block = False,
    wait: submitting.Wait = False,
    timeout: values.Timeout = None,
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
    options = generation_options(
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
