"""What a client can ask for. A task knows the type of its result, so `submit` has one signature for all of them.

A part's estimated cost, which the claim weighs, follows Qwen2.5-VL, the family of the recommended models; the engine
counts exactly once the page is decoded.
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
    """What a document is, as far as it changes how it is read and how long its text is expected to be."""

    PRESCRIPTION = "prescription"
    DIAGNOSIS = "diagnosis"
    LAB_RESULT = "lab_result"
    CHART = "chart"
    MIXED = "mixed"


class Preparation(StrEnum):
    """A step from a decoded page to the page that an engine sees."""

    BLANK = "blank"
    """A page on which nothing stands is marked as blank, and no engine reads it."""
    ORIENT = "orient"
    """A page that lies on its side or stands on its head is turned upright."""
    DESKEW = "deskew"
    """A page that lies slightly askew is turned until its lines are level."""
    DOWNSCALE = "downscale"
    """A page with more pixels than the engine can use is scaled down."""


class Prefer(StrEnum):
    """What a page of a PDF is read from: its text layer, which the file brings itself, or its pixels."""

    AUTO = "auto"
    """The layer where it can be trusted."""
    LAYER = "layer"
    """The layer wherever there is one, also if it was recognised from a scan or is hidden."""
    PIXELS = "pixels"
    """The pixels, always."""


class Witness(StrEnum):
    """Who reads a page beside a language model, so that its values need not be believed on its word alone."""

    AUTO = "auto"
    """The page's own text layer where it can be trusted, else the CPU engine where that is installed."""
    LAYER = "layer"
    """The layer alone; a page without one has no witness."""
    OCR = "ocr"
    """The CPU engine, always."""
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
        raise storable.invalid(
            "only a task whose source is in the payload store, or a URL, can be written down"
        )

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
    """Named ways to write, as the fleet's data files spell them out."""

    FACTUAL = "factual"
    BALANCED = "balanced"
    CREATIVE = "creative"
    QUALITY = "quality"
    SPEED = "speed"


class CaptionStyle(StrEnum):
    """How much a caption says."""

    BRIEF = "brief"
    DETAILED = "detailed"
    DENSE = "dense"


class GenerationOptions(BaseModel):
    """What a task changes of its preset; None leaves it as the preset says."""

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
    # Pydantic makes a member of a name that a caller wrote.
    AnyDocumentType, AnyPreparation, AnyPrefer = DocumentType, Preparation, Prefer
    AnyWitness, AnyPreset, AnyCaptionStyle = Witness, Preset, CaptionStyle

    def _to_schema(value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value.model_json_schema()
        return value

    FieldsOf = Annotated[dict[str, Any] | None, BeforeValidator(_to_schema)]

    def _writable(secret: SecretStr) -> SecretStr:
        if not 0 < len(secret) <= storable.PASSWORD or "\0" in secret.get_secret_value():
            raise storable.invalid(f"a password has 1 to {storable.PASSWORD:,} characters, none of them NUL")
        return secret

    Password = Annotated[
        Annotated[SecretStr, AfterValidator(_writable)] | None,
        PlainSerializer(lambda secret: secret and secret.get_secret_value(), return_type=str | None),
    ]


def _checked_instructions(instructions: str) -> str:
    if not instructions.strip() or not storable.is_storable(instructions):
        raise storable.invalid("instructions are text that says something, without NUL")
    return instructions


# An error about a task must not quote what it was made of: that may be a document. Not `defer_build`: pydantic builds a
# dataclass without a lock, and the first tasks of two threads would clash.
_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)


@dataclass(frozen=True, config=_CONFIG)
class Task(Generic[R_co]):
    """A piece of work on one source; the type parameter is what its job returns.

    The client replaces `source` by a reference to the payload store; a stored task holds nothing else of the document.
    Text that begins with `http://`, `https://` or `s3://` is a URL, which the fleet fetches; any other is a path.
    """

    kind: ClassVar[str]
    stage: ClassVar[Stage]
    result_type: ClassVar[type[BaseModel]]

    source: Source = Field(repr=False)
    cache: bool = Field(default=True, kw_only=True)
    """Whether an earlier reading may be the result, and later tasks may use this reading; False: neither."""


def languages_of(language: str | None) -> tuple[str, ...]:
    """Return the languages that a task names, in their order."""
    return tuple(language.split(",")) if language else ()


@dataclass(frozen=True, config=_CONFIG)
class ReadPages(Task[R_co]):
    """What the tasks have in common whose parts are pages."""

    stage: ClassVar[Stage] = Stage.READ

    document_type: AnyDocumentType = Field(default=DocumentType.MIXED, kw_only=True)
    language: str | None = Field(default=None, kw_only=True, pattern=r"^[a-z]{2}(,[a-z]{2}){0,7}$")
    """ISO 639-1, as in `en`, or several as in `en,ko,zh`; None: whatever the engine recognises. Of several, a page is
    read by what knows its script."""
    fields: FieldsOf = Field(default=None, kw_only=True)
    """A pydantic model or a JSON schema of an object that each page shall fill, beside its text."""
    instructions: Annotated[str, AfterValidator(_checked_instructions)] | None = Field(
        default=None, kw_only=True, repr=False, max_length=storable.INSTRUCTIONS
    )
    """Prompt of a language model for each page; None: that of its reader card."""
    preset: AnyPreset | None = Field(default=None, kw_only=True)
    """How to write; None: as the model's reader card says, which is mostly greedily."""
    options: GenerationOptions | None = Field(default=None, kw_only=True)
    """What to change of the preset."""
    adapter: str | None = Field(default=None, kw_only=True, min_length=1, max_length=storable.NAME)
    """LoRA adapter to read with, by the name that the fleet's settings give it."""
    pages: Annotated[str, AfterValidator(lambda pages: str(PageRanges.parse(pages)))] | None = Field(
        default=None, kw_only=True
    )
    """Which to read, as in `1-3,7,9-`: counted from 1, in the document's order, each once. None: all of them."""
    password: Password = Field(default=None, kw_only=True, repr=False)
    """What opens a protected PDF."""
    prepare: tuple[AnyPreparation, ...] | None = Field(
        default=None, kw_only=True, max_length=len(Preparation)
    )
    """Steps by which pages are prepared; `()`: they are read as they are. None: as the fleet is set."""
    prefer: AnyPrefer = Field(default=Prefer.AUTO, kw_only=True)
    """What a page of a PDF is read from, if it brings its own text."""
    witness: AnyWitness | None = Field(default=None, kw_only=True)
    """Who reads its pages beside a language model; None: as the fleet is set."""


@dataclass(frozen=True, config=_CONFIG)
class ReadDocument(ReadPages[Document]):
    """Read the text of a document: a picture, a TIFF of many frames, a PDF or a DICOM file."""

    kind: ClassVar[str] = "document.read"
    result_type: ClassVar[type[BaseModel]] = Document


@dataclass(frozen=True, config=_CONFIG)
class ReadBundle(ReadPages[Bundle]):
    """Read documents that were scanned into one file, and find where each begins, its kind and its patient.

    Several files in a sequence are one bundle in that order; so are those of a folder, in the natural order of their
    names: `page-2` before `page-10`.
    """

    kind: ClassVar[str] = "bundle.read"
    result_type: ClassVar[type[BaseModel]] = Bundle

    source: Sources = Field(repr=False)  # type: ignore[assignment]  # other tasks have one
    subject: Subject | None = Field(default=None, kw_only=True, repr=False)
    """The only patient whom its documents may be of; None: any."""


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
    """Length of one segment; None: as the fleet is set."""
    preset: AnyPreset | None = Field(default=None, kw_only=True)
    """How to write; None: balanced."""
    options: GenerationOptions | None = Field(default=None, kw_only=True)
    """What to change of the preset."""
    adapter: str | None = Field(default=None, kw_only=True, min_length=1, max_length=storable.NAME)
    """LoRA adapter to caption with, by the name that the fleet's settings give it."""


@dataclass(frozen=True, config=_CONFIG)
class RequestFile(Task[Document]):
    """Hold a file of requests, a JSON line each, for the OpenAI API of the gateway. It has no part."""

    kind: ClassVar[str] = "openai.file"
    stage: ClassVar[Stage] = Stage.INGEST
    result_type: ClassVar[type[BaseModel]] = Document

    lines: int = Field(kw_only=True, ge=1)
    kept_s: int | None = Field(default=None, kw_only=True)
    """For how long the file is there, or those of answers after a batch; None: for as long as what it is made of."""


@dataclass(frozen=True, config=_CONFIG)
class RequestBatch(RequestFile):
    """Submit a job for each line of a file of requests. The gateway does it; it has no part."""

    kind: ClassVar[str] = "openai.batch"

    file: str = Field(kw_only=True)
    """The id of the file."""
    window: str = Field(kw_only=True)
    """In what time the requests are answered, as the client wrote it."""
    following: int = Field(default=0, kw_only=True)
    """The number of the next line to be submitted."""
    refused: int = Field(default=0, kw_only=True)
    """Lines before it that are no request."""


HIDDEN_KINDS: Final = (RequestFile.kind, RequestBatch.kind)
"""Kinds of jobs without a part, which lists and counts of jobs leave out unless they ask for them."""

_TYPES: dict[str, type[Task[Any]]] = {
    task.kind: task for task in (ReadDocument, ReadBundle, CaptionVideo, RequestFile, RequestBatch)
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(task) for kind, task in _TYPES.items()}


def task_to_json(task: Task[Any], source: PayloadRef | UrlRef | None = None) -> dict[str, Any]:
    """Return the task as it is stored. Its source, or the one given in its place, must be a `PayloadRef` or a `UrlRef`.

    A URL stands beside the source, which is null until the fleet has fetched it.
    """
    left_out = {"source"} if source else None
    stored: dict[str, Any] = _ADAPTERS[task.kind].dump_python(task, mode="json", exclude=left_out)
    reference = source or task.source
    if isinstance(reference, UrlRef):
        return stored | {"source": None, "url": reference.url}
    return stored | {"source": source.model_dump(mode="json")} if source else stored


def task_from_json(kind: str, stored: Mapping[str, Any]) -> Task[Any]:
    """Return the task that `task_to_json` wrote. Raises `pydantic.ValidationError` on anything else."""
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
"""Tokens that the split of a bundle counts as: it needs no engine."""

_PATCH = 28  # pixels on a side of what becomes one token: 14 px patches merged 2 x 2
_MIN_PIXELS = 56 * 56
_MAX_PIXELS = 12_845_056  # of the published checkpoints' preprocessor_config.json
PROMPT_TOKENS = 64
"""What the instruction and the chat template are taken to be."""

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
"""Output tokens of a part by workload: where a fleet starts before it has learned its own.

Pages by document type: the means of the medical workload the product is sized for. Fields: as a prescription's text.
Captions: within the 50 to 256 new tokens that a caption is asked to have.
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
    """Return the tokens one video segment is expected to take: two frames share theirs, as in Qwen2.5-VL's clips."""
    seen = ceil(frames / 2) * image_tokens(width, height)
    return seen + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]


def summary_cost(segments: int, style: CaptionStyle) -> int:
    """Return the tokens the summary of so many segments is expected to take: their captions, and its own text."""
    captions = segments * EXPECTED_OUTPUT_TOKENS[f"caption-{style}"]
    return captions + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS["summary"]


def page_cost(width: int, height: int, document_type: DocumentType) -> int:
    """Return the tokens one page is expected to take: picture, prompt and answer."""
    return image_tokens(width, height) + PROMPT_TOKENS + EXPECTED_OUTPUT_TOKENS[document_type]
