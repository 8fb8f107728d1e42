"""Files of known content: their format, and their true text, values, tables and marks."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from pecia.errors import ConfigurationError
from pecia_schemas.blocks import Cell, Mark, Table
from pecia_schemas.bundles import DocumentKind, Subject
from pecia_schemas.installing import install_command
from pecia_schemas.media import MediaType, PageRanges

_NUMBER: Final = re.compile(r"[-_ ]*\d+$")
_CORNERS: Final = 8
_FORMS: Final = (".json", ".csv", ".txt")


class _Truth(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TruePage(_Truth):
    """The true content of one page."""

    text: str
    """Text in reading order, one line for each printed line or table row; empty for a blank page."""
    in_file: str | None = None
    """The text of a PDF's page in the order of the file."""
    tables: tuple[Table, ...] | None = None
    """None if unknown."""
    marks: tuple[Mark, ...] | None = None


class TrueDocument(_Truth):
    """A true document of a bundle."""

    pages: Annotated[PageRanges, BeforeValidator(PageRanges.parse), PlainSerializer(str)]
    """Pages as in `1-3,5`, including blank backs; a separator sheet belongs to no document."""
    kind: DocumentKind | None = None
    """None if unknown, as for all fields below."""
    patient: str | None = None
    """Any name for the patient, the same for all documents of the patient."""
    identity: Subject | None = None
    """What the pages contain about the patient; `{}` for nothing."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the document's pages, from 1."""
        return [index + 1 for index in self.pages.indices(self.pages.last or 0)]


class Truth(_Truth):
    """The known content of one file, from NAME.json."""

    kind: str = ""
    """Kind of page for the report; empty stands for the name without its number, `receipt` for `receipt-053.jpg`."""
    language: str | None = None
    """Language in which the file is read or captioned."""
    pages: tuple[TruePage, ...] = ()
    documents: tuple[TrueDocument, ...] = ()
    """Documents of a bundle. The file is then read as a bundle, and its `pages` may be unknown."""
    captions: tuple[str, ...] = ()
    """Texts that describe a video well."""


class PlacedTable(_Truth):
    """A table in NAME.tables.json, which contains a list of them."""

    page: int = Field(ge=1)
    cells: tuple[Cell, ...] = Field(min_length=1)

    @property
    def table(self) -> Table:
        """The table, in the size that its cells need."""
        return Table(
            rows=max(cell.row + cell.row_span for cell in self.cells),
            columns=max(cell.column + cell.column_span for cell in self.cells),
            cells=self.cells,
        )


_PLACED_TABLES: Final = TypeAdapter(tuple[PlacedTable, ...])


class Exhibit(BaseModel):
    """A file with its truth."""

    path: Path
    name: str
    """Path of the file below the folder."""
    media: MediaType
    truth: Truth = Field(repr=False)
    is_own_truth: bool = False
    """Whether the truth is the file's own text, so that the file must be read from its pixels."""

    @property
    def kind(self) -> str:
        """Kind of page for the report."""
        return self.truth.kind or _NUMBER.sub("", self.path.stem) or self.path.stem


class TruthError(ValueError):
    """A truth that cannot be understood."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"'{file}' is not a truth that can be read: {why}")


def exhibits(folder: Path, files: Iterable[tuple[Path, MediaType]]) -> Iterator[Exhibit]:
    """Yield the files below a folder whose truth is known. Raises `TruthError`."""
    for path, media in files:
        beside = truth = _beside(path, media)
        if beside is None and media is MediaType.PDF:
            # The decoder of another distribution reads the file's own text.
            own_text = part_of_local("layer", "Reading the text of PDFs needs the fleet's decoder")
            pages: list[tuple[str, str]] = own_text(path)
            if pages and all(in_file.strip() for _, in_file in pages):
                truth = Truth(pages=tuple(TruePage(text=text, in_file=in_file) for text, in_file in pages))
        if truth and (tables := _tables_beside(path)):
            known = tuple(
                page.model_copy(update={"tables": tables.get(number, ())})
                for number, page in enumerate(truth.pages, 1)
            )
            truth = truth.model_copy(update={"pages": known})
        if truth:
            name = str(path.relative_to(folder))
            yield Exhibit(path=path, name=name, media=media, truth=truth, is_own_truth=beside is None)


def _tables_beside(path: Path) -> dict[int, tuple[Table, ...]]:
    """Return the tables of each page in NAME.tables.json, or nothing without that file."""
    known = path.with_suffix(".tables.json")
    if not known.is_file():
        return {}
    try:
        found = _PLACED_TABLES.validate_json(known.read_bytes())
    except ValidationError as error:
        raise TruthError(known, _first_of(error)) from None
    pages: dict[int, tuple[Table, ...]] = {}
    for one in found:
        pages[one.page] = (*pages.get(one.page, ()), one.table)
    return pages


def _beside(path: Path, media: MediaType) -> Truth | None:
    """Return the truth in the first matching file beside the document, or None without one."""
    known = next((known for form in _FORMS if (known := path.with_suffix(form)).is_file()), None)
    if known is None:
        return None
    try:
        truth = _read(known, media)
    except ValidationError as error:
        why = _first_of(error)
    except (OSError, ValueError) as error:  # includes decoding errors
        why = str(error)
    else:
        if truth.captions if media.is_video else truth.pages or truth.documents:
            return truth
        why = f"it has no {'captions' if media.is_video else 'pages'}."
    raise TruthError(known, why)


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _read(known: Path, media: MediaType) -> Truth:
    if known.suffix == ".json":
        return Truth.model_validate_json(known.read_bytes())
    text = known.read_text("utf-8-sig")
    if known.suffix == ".csv":
        # A row is a printed line: eight corner coordinates, then the text, which may contain commas.
        rows = [row.split(",", _CORNERS) for row in text.splitlines() if row.strip()]
        if any(len(row) <= _CORNERS for row in rows):
            raise ValueError("a row lacks eight coordinates and a text.")
        return Truth(pages=(TruePage(text="\n".join(row[_CORNERS] for row in rows)),))
    if media.is_video:
        return Truth(captions=tuple(line for line in text.splitlines() if line.strip()))
    return Truth(pages=tuple(TruePage(text=page) for page in text.removesuffix("\f").split("\f")))


def part_of_local(name: str, why: str) -> Any:
    """Return the object that `pecia[local]` registers under this name. Raises `ConfigurationError` if it is missing."""
    try:
        return next(iter(entry_points(group="pecia.local", name=name))).load()
    except (StopIteration, ImportError):
        raise ConfigurationError(f"{why}: {install_command('local')}") from None
