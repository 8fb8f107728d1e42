"""Tasks that a client can submit. A task knows the type of its result, so one signature of `submit` serves all.

A part's estimated cost, used when parts are claimed, follows Qwen2.5-VL, the family of the recommended models; the
engine counts exactly once the page is decoded.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from math import ceil, floor, sqrt
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass

from pecia_schemas import storable
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Subject
from pecia_schemas.media import URL_SCHEMES, PageRanges, PayloadRef, Pile, UrlRef
from pecia_schemas.results import Captions, Document
from pecia_schemas.states import Stage

R_co = TypeVar("R_co", bound=BaseModel, covariant=True)


class DocumentType(StrEnum):
    """Type of a document; it affects how the document is read and the expected length of its text."""

    PRESCRIPTION = "prescription"
    DIAGNOSIS = "diagnosis"
    LAB_RESULT = "lab_result"
    CHART = "chart"
    MIXED = "mixed"


class Preparation(StrEnum):
    """A step that prepares a decoded page for the engine."""

    BLANK = "blank"
    """Mark blank pages; no engine reads them."""
    ORIENT = "orient"
    """Turn pages upright that are rotated by 90, 180 or 270 degrees."""
    DESKEW = "deskew"
    """Rotate skewed pages until their lines are level."""
    DOWNSCALE = "downscale"
    """Scale down pages with more pixels than the engine can use."""


class Prefer(StrEnum):
    """Whether a PDF page is read from its text layer, contained in the file, or from its pixels."""

    AUTO = "auto"
    """The text layer where it is trustworthy."""
    LAYER = "layer"
    """Any text layer, even one that was recognised from a scan or is hidden."""
    PIXELS = "pixels"
    """Always the pixels."""


class Witness(StrEnum):
    """An independent reading of a page that is compared with a language model's."""

    AUTO = "auto"
    """The page's own text layer where it is trustworthy, else the CPU engine where that is installed."""
    LAYER = "layer"
    """Only the text layer; a page without one has no witness."""
    OCR = "ocr"
    """Always the CPU engine."""
    NONE = "none"
    """No witness."""


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | bytes | IO[bytes] | PayloadRef | UrlRef
    Sources = Source | Sequence[str | os.PathLike[str] | bytes | IO[bytes]]
else:

    def _to_source(value: Any) -> Any:
        if isinstance(value, Mapping):
            return (UrlRef if "url" in value else PayloadRef).model_validate(value)
        if isinstance(value, str) and value.lower().startswith(URL_SCHEMES):
            return UrlRef(url=value)
        if isinstance(value, (str, os.PathLike)):
            return Path(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, (PayloadRef, UrlRef)) or hasattr(value, "read"):
            return value
        raise storable.invalid(
            f"a source is a path, a URL, bytes or a binary file object, not {type(value).__name__}"
        )

    def _to_sources(value: Any) -> Any:
        if isinstance(value, Pile):
            return value
        if not isinstance(value, (list, tuple)):
            source = _to_source(value)
            return Pile((source,)) if isinstance(source, Path) and source.is_dir() else source
        sources = tuple(map(_to_source, value))
        if not sources or any(isinstance(source, (PayloadRef, UrlRef)) for source in sources):
            raise storable.invalid("several sources are paths, bytes or binary file objects, at least one")
        return Pile(sources)

    def _to_reference(value: Any) -> PayloadRef | UrlRef:
        if isinstance(value, (PayloadRef, UrlRef)):
            return value
        raise storable.invalid("only a task whose source is a URL or in the payload store can be serialized")

    Source = Annotated[
        Any,
        PlainValidator(_to_source, json_schema_input_type=PayloadRef | UrlRef),
        PlainSerializer(_to_reference, return_type=PayloadRef | UrlRef),
    ]
    Sources = Annotated[
        Any,
        PlainValidator(_to_sources, json_schema_input_type=PayloadRef | UrlRef),
        PlainSerializer(_to_reference, return_type=PayloadRef | UrlRef),
    ]


class Preset(StrEnum):
    """Named settings for text generation, defined in the fleet's data files."""

    FACTUAL = "factual"
    BALANCED = "balanced"
    CREATIVE = "creative"
    QUALITY = "quality"
    SPEED = "speed"


class CaptionStyle(StrEnum):
    """Length of captions."""

    BRIEF = "brief"
    DETAILED = "detailed"
    DENSE = "dense"


class GenerationOptions(BaseModel):
    """Changes to the task's preset; None keeps the preset's value."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    """0: no limit."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    max_output_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)


if TYPE_CHECKING:
    FieldsOf = Mapping[str, Any] | type[BaseModel] | None
    Password = SecretStr | str | None
    AnyDocumentType = DocumentType | Literal["prescription", "diagnosis", "lab_result", "chart", "mixed"]
    AnyPreparation = Preparation | Literal["blank", "orient", "deskew", "downscale"]
    AnyPrefer = Prefer | Literal["auto", "layer", "pixels"]
    AnyWitness = Witness | Literal["auto", "layer", "ocr", "none"]
    AnyPreset = Preset | Literal["factual", "balanced", "creative", "quality", "speed"]
    AnyCaptionStyle = CaptionStyle | Literal["brief", "detailed", "dense"]
else:
    # Pydantic converts names from callers to members.
    AnyDocumentType, AnyPreparation, AnyPrefer = DocumentType, Preparation, Prefer
    AnyWitness, AnyPreset, AnyCaptionStyle = Witness, Preset, CaptionStyle

    def _to_schema(value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value.model_json_schema()
        return value

    FieldsOf = Annotated[dict[str, Any] | None, BeforeValidator(_to_schema)]

    def _writable(secret: SecretStr) -> SecretStr:
        if not 0 < len(secret) <= storable.PASSWORD or "\0" in secret.get_secret_value():
            raise storable.invalid(f"a password has 1 to {storable.PASSWORD:,} characters without NUL")
        return secret

    Password = Annotated[
        Annotated[SecretStr, AfterValidator(_writable)] | None,
        PlainSerializer(lambda secret: secret and secret.get_secret_value(), return_type=str | None),
    ]


def _checked_instructions(instructions: str) -> str:
    if not instructions.strip() or not storable.is_storable(instructions):
        raise storable.invalid("instructions must be text without NUL, and not blank")
    return instructions


# An error about a task must not quote its input, which may be a document. Not `defer_build`: pydantic builds a
# dataclass without a lock, and the first tasks of two threads would clash.
_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)


@dataclass(frozen=True, config=_CONFIG)
class Task(Generic[R_co]):
    """Work on one source; the type parameter is the type of the job's result.

    The client replaces `source` with a reference to the payload store; a stored task contains nothing else of the
    document. Text that begins with `http://`, `https://` or `s3://` is a URL, which the fleet fetches; other text is a
    path.
    """

    kind: ClassVar[str]
    stage: ClassVar[Stage]
    result_type: ClassVar[type[BaseModel]]

    source: Source = Field(repr=False)
    cache: bool = Field(default=True, kw_only=True)
    """Whether this task may use an earlier reading, and later tasks may use this one."""


def languages_of(language: str | None) -> tuple[str, ...]:
    """Return a task's languages in their order."""
    return tuple(language.split(",")) if language else ()


@dataclass(frozen=True, config=_CONFIG)
class ReadPages(Task[R_co]):
    """Fields of all tasks whose parts are pages."""

    stage: ClassVar[Stage] = Stage.READ

    document_type: AnyDocumentType = Field(default=DocumentType.MIXED, kw_only=True)
    language: str | None = Field(default=None, kw_only=True, pattern=r"^[a-z]{2}(,[a-z]{2}){0,7}$")
    """ISO 639-1 codes, such as `en` or `en,ko,zh`; None means all languages of the engine. With several, the page's
    script decides which engine reads it."""
    fields: FieldsOf = Field(default=None, kw_only=True)
    """A pydantic model or the JSON schema of an object that each page fills, in addition to its text."""
    instructions: Annotated[str, AfterValidator(_checked_instructions)] | None = Field(
        default=None, kw_only=True, repr=False, max_length=storable.INSTRUCTIONS
    )
    """Prompt of a language model for each page; None: that of its reader card."""
    preset: AnyPreset | None = Field(default=None, kw_only=True)
    """Settings for text generation; None: those of the model's reader card, usually greedy decoding."""
    options: GenerationOptions | None = Field(default=None, kw_only=True)
    """Changes to the preset."""
    adapter: str | None = Field(default=None, kw_only=True, min_length=1, max_length=storable.NAME)
    """LoRA adapter for reading, by its name in the fleet's settings."""
    pages: Annotated[str, AfterValidator(lambda pages: str(PageRanges.parse(pages)))] | None = Field(
        default=None, kw_only=True
    )
    """Pages to read, such as `1-3,7,9-`: counted from 1, in document order, each once. None: all pages."""
    password: Password = Field(default=None, kw_only=True, repr=False)
    """Password of a protected PDF."""
    prepare: tuple[AnyPreparation, ...] | None = Field(
        default=None, kw_only=True, max_length=len(Preparation)
    )
    """Steps that prepare pages; `()`: none. None: the fleet's setting."""
    prefer: AnyPrefer = Field(default=Prefer.AUTO, kw_only=True)
    """Source of text on PDF pages that have a text layer."""
    witness: AnyWitness | None = Field(default=None, kw_only=True)
    """Witness of a language model; None: the fleet's setting."""


@dataclass(frozen=True, config=_CONFIG)
class ReadDocument(ReadPages[Document]):
    """Read the text of a document: a picture, a multi-frame TIFF, a PDF or a DICOM file."""

    kind: ClassVar[str] = "document.read"
    result_type: ClassVar[type[BaseModel]] = Document


@dataclass(frozen=True, config=_CONFIG)
class ReadBundle(ReadPages[Bundle]):
    """Read documents that were scanned into one file, and find the start, kind and patient of each.

    A sequence of files is one bundle in that order; so is a folder, with its files in natural order: `page-2` before
    `page-10`.
    """

    kind: ClassVar[str] = "bundle.read"
    result_type: ClassVar[type[BaseModel]] = Bundle

    source: Sources = Field(repr=False)  # type: ignore[assignment]  # other tasks have one
    subject: Subject | None = Field(default=None, kw_only=True, repr=False)
    """The only possible patient of the documents; None: any patient."""


@dataclass(frozen=True, config=_CONFIG)
class CaptionVideo(Task[Captions]):
    """Describe a video, segment by segment."""

    kind: ClassVar[str] = "video.caption"
    stage: ClassVar[Stage] = Stage.CAPTION
    result_type: ClassVar[type[BaseModel]] = Captions

    language: str = Field(default="en", kw_only=True, pattern=r"^(en|ko)$")
    """The language of the captions: `en` or `ko`."""
    style: AnyCaptionStyle = Field(default=CaptionStyle.DETAILED, kw_only=True)
    segments: timedelta | None = Field(default=None, kw_only=True, gt=timedelta())
    """Length of one segment; None: the fleet's setting."""
    preset: AnyPreset | None = Field(default=None, kw_only=True)
    """Settings for text generation; None: balanced."""
    options: GenerationOptions | None = Field(default=None, kw_only=True)
    """Changes to the preset."""
    adapter: str | None = Field(default=None, kw_only=True, min_length=1, max_length=storable.NAME)
    """LoRA adapter for captions, by its name in the fleet's settings."""


@dataclass(frozen=True, config=_CONFIG)
class RequestFile(Task[Document]):
    """A file of requests as JSON lines, for the gateway's OpenAI API. The task has no parts."""

    kind: ClassVar[str] = "openai.file"
    stage: ClassVar[Stage] = Stage.INGEST
    result_type: ClassVar[type[BaseModel]] = Document

    lines: int = Field(kw_only=True, ge=1)
    kept_s: int | None = Field(default=None, kw_only=True)
    """How long the file, or a batch's answer file, exists; None: as long as its source."""


@dataclass(frozen=True, config=_CONFIG)
class RequestBatch(RequestFile):
    """Submit a job for each line of a request file. The gateway does this; the task has no parts."""

    kind: ClassVar[str] = "openai.batch"

    file: str = Field(kw_only=True)
    """Id of the file."""
    window: str = Field(kw_only=True)
    """Completion window of the requests, as the client wrote it."""
    following: int = Field(default=0, kw_only=True)
    """Number of the next line to submit."""
    refused: int = Field(default=0, kw_only=True)
    """Earlier lines that are no valid request."""


HIDDEN_KINDS: Final = (RequestFile.kind, RequestBatch.kind)
"""Kinds of jobs without parts, which lists and counts of jobs exclude by default."""

_TYPES: dict[str, type[Task[Any]]] = {
    task.kind: task for task in (ReadDocument, ReadBundle, CaptionVideo, RequestFile, RequestBatch)
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(task) for kind, task in _TYPES.items()}


def task_to_json(task: Task[Any], source: PayloadRef | UrlRef | None = None) -> dict[str, Any]:
    """Return the task in its stored form. Its source, or `source` instead, must be a `PayloadRef` or a `UrlRef`.

    A URL is stored beside the source, which is null until the fleet has fetched it.
    """
    left_out = {"source"} if source else None
    stored: dict[str, Any] = _ADAPTERS[task.kind].dump_python(task, mode="json", exclude=left_out)
    reference = source or task.source
    if isinstance(reference, UrlRef):
        return stored | {"source": None, "url": reference.url}
    return stored | {"source": source.model_dump(mode="json")} if source else stored


def task_from_json(kind: str, stored: Mapping[str, Any]) -> Task[Any]:
    """Return the task that `task_to_json` wrote. Raises `pydantic.ValidationError` for other values."""
    given = {name: value for name, value in stored.items() if name != "url"}
    if stored.get("source") is None and "url" in stored:
        given["source"] = {"url": stored["url"]}
    task: Task[Any] = _ADAPTERS[kind].validate_python(given)
    return task


def task_type(kind: str) -> type[Task[Any]]:
    """Return the class of a kind of task. Raises `KeyError` for an unknown kind."""
    return _TYPES[kind]


def has_pages(kind: str) -> bool:
    """Return whether the parts of a kind of task are pages."""
    return issubclass(_TYPES.get(kind, Task), ReadPages)


SPLIT_COST: Final = 1
"""Token count of the split of a bundle, which needs no engine."""

_PATCH = 28  # side of one token's square in pixels: 14 px patches merged 2 x 2
_MIN_PIXELS = 56 * 56
_MAX_PIXELS = 12_845_056  # of the published checkpoints' preprocessor_config.json
PROMPT_TOKENS = 64
"""Assumed length of the instruction and the chat template."""

EXPECTED_OUTPUT_TOKENS: dict[str, int] = {
    DocumentType.PRESCRIPTION: 200,
    DocumentType.DIAGNOSIS: 800,
    DocumentType.LAB_RESULT: 400,
    DocumentType.CHART: 2000,
    DocumentType.MIXED: 600,
    "fields": 200,
    "canary": 100,
    "caption-brief": 64,
    "caption-detailed": 160,
    "caption-dense": 256,
    "summary": 256,
}
"""Expected output tokens of a part by workload, until a fleet has learned its own.

Pages by document type: means of the medical workload that the product is sized for. Fields: the text of a prescription.
Captions: within the 50 to 256 new tokens that captions are asked to have.
"""


def image_tokens(width: int, height: int) -> int:
    """Return the tokens of a picture of `width` x `height` pixels, both positive.

    Source: `smart_resize` in transformers `models/qwen2_vl/image_processing_qwen2_vl.py`.
    """
    rows, columns = max(1, round(height / _PATCH)), max(1, round(width / _PATCH))
    if rows * columns * _PATCH**2 > _MAX_PIXELS:
        shrink = sqrt(width * height / _MAX_PIXELS)
        rows, columns = floor(height / shrink / _PATCH), floor(width / shrink / _PATCH)
    elif rows * columns * _PATCH**2 < _MIN_PIXELS:
        grow = sqrt(_MIN_PIXELS / (width * height))
        rows, columns = ceil(height * grow / _PATCH), ceil(width * grow / _PATCH)
    return max(1, rows) * max(1, columns)


def segment_cost(frames: int, width: int, height: int, style: CaptionStyle) -> int:
    """Return the expected tokens of a video segment: two frames share theirs, as in Qwen2.5-VL's clips."""
    seen = ceil(frames / 2) * image_tokens(width, height)
    return seen + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]


def summary_cost(segments: int, style: CaptionStyle) -> int:
    """Return the expected tokens of a summary of so many segments: their captions and its own text."""
    captions = segments * EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]
    return captions + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS["summary"]


def page_cost(width: int, height: int, document_type: DocumentType) -> int:
    """Return the expected tokens of a page: picture, prompt and answer."""
    return image_tokens(width, height) + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[document_type]
