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
    """What stands on one page."""

    text: str
    """In reading order, a line for each printed line; a table's row is one line. Empty: the page is blank."""
    in_file: str | None = None
    """Of a PDF's own text: the same in the order in which the file has it."""
    tables: tuple[Table, ...] | None = None
    """None: it is not known."""
    marks: tuple[Mark, ...] | None = None


class TrueDocument(_Truth):
    """A document of a bundle."""

    pages: Annotated[PageRanges, BeforeValidator(PageRanges.parse), PlainSerializer(str)]
    """As in `1-3,5`, blank backs included; a separator sheet is in no document."""
    kind: DocumentKind | None = None
    """None: it is not known, as all below."""
    patient: str | None = None
    """Whose it is: any name, the same for all documents of one patient."""
    identity: Subject | None = None
    """What its pages say of the patient; `{}`: nothing."""

    @property
    def numbers(self) -> list[int]:
        """Its pages, counted from 1."""
        return [index + 1 for index in self.pages.indices(self.pages.last or 0)]


class Truth(_Truth):
    """What is known of one file: the content of NAME.json."""

    kind: str = ""
    """What pages it is counted with; empty: the name without its number, `receipt` for `receipt-053.jpg`."""
    language: str | None = None
    """To read or to caption it in."""
    pages: tuple[TruePage, ...] = ()
    documents: tuple[TrueDocument, ...] = ()
    """Of a bundle, which is then read as one; its `pages` need not be known."""
    captions: tuple[str, ...] = ()
    """Of a video: texts that describe it well."""


class PlacedTable(_Truth):
    """A table of NAME.tables.json, which holds a list of them."""

    page: int = Field(ge=1)
    cells: tuple[Cell, ...] = Field(min_length=1)

    @property
    def table(self) -> Table:
        """The table, as large as its cells reach."""
        return Table(
            rows=max(cell.row + cell.row_span for cell in self.cells),
            columns=max(cell.column + cell.column_span for cell in self.cells),
            cells=self.cells,
        )


_PLACED_TABLES: Final = TypeAdapter(tuple[PlacedTable, ...])


class Exhibit(BaseModel):
    """A file and its truth."""

    path: Path
    name: str
    """Its path below the folder."""
    media: MediaType
    truth: Truth = Field(repr=False)
    is_own_truth: bool = False
    """Whether the truth is the file's own text, so that it has to be read from its pixels."""

    @property
    def kind(self) -> str:
        """What it is counted with."""
        return self.truth.kind or _NUMBER.sub("", self.path.stem) or self.path.stem


class TruthError(ValueError):
    """A truth that cannot be understood."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"'{file}' is not a truth that can be read: {why}")


def exhibits(folder: Path, files: Iterable[tuple[Path, MediaType]]) -> Iterator[Exhibit]:
    """Yield those of the files below a folder whose truth is known. Raises `TruthError`."""
    for path, media in files:
        beside = truth = _beside(path, media)
        if beside is None and media is MediaType.PDF:
            # Its own text, which another distribution's decoder reads.
            own_text = part_of_local("layer", "The text of PDFs is read by the fleet's decoder")
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
    """Return the tables of each page that NAME.tables.json knows; nothing without that file."""
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
    """Return what the first file of its name in one of the forms says; None if there is none."""
    known = next((known for form in _FORMS if (known := path.with_suffix(form)).is_file()), None)
    if known is None:
        return None
    try:
        truth = _read(known, media)
    except ValidationError as error:
        why = _first_of(error)
    except (OSError, ValueError) as error:  # of an encoding, too
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
        # A line of print per row: its text stands behind eight corner coordinates, and may hold commas.
        rows = [row.split(",", _CORNERS) for row in text.splitlines() if row.strip()]
        if any(len(row) <= _CORNERS for row in rows):
            raise ValueError("a row has less than eight coordinates and a text.")
        return Truth(pages=(TruePage(text="\n".join(row[_CORNERS] for row in rows)),))
    if media.is_video:
        return Truth(captions=tuple(line for line in text.splitlines() if line.strip()))
    return Truth(pages=tuple(TruePage(text=page) for page in text.removesuffix("\f").split("\f")))


def part_of_local(name: str, why: str) -> Any:
    """Return what `pecia[local]` has under this name. Raises `ConfigurationError` if that is not installed."""
    try:
        return next(iter(entry_points(group="pecia.local", name=name))).load()
    except (StopIteration, ImportError):
        raise ConfigurationError(f"{why}: {install_command('local')}") from None
