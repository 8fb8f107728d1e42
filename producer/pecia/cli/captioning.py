"""`pecia caption`: videos in, ids or captions out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pecia.cli import generation, results, submitting, values
from pecia.cli.inputs import inputs
from pecia_schemas.states import Lane
from pecia_schemas.tasks import CaptionStyle, CaptionVideo


class Language(StrEnum):
    """What captions are written in."""

    EN = "en"
    KO = "ko"


Style = Annotated[CaptionStyle, typer.Option(help="How much a caption says.")]
InLanguage = Annotated[Language, typer.Option(help="What the captions are written in.")]
Segments = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.1, help="Length of one segment. Default: as the fleet is set."),
]


def caption(
    files: submitting.Files,
    *,
    priority: submitting.Priority = Lane.NORMAL,
    style: Style = CaptionStyle.DETAILED,
    language: InLanguage = Language.EN,
    segments: Segments = None,
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
    """Describe what videos show, segment by segment, and as a whole. Prints the jobs' ids, or with --wait the captions.

    Example: `pecia caption gait.mp4 --style brief --wait`
    """
    options = generation.options(
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
