"""`pecia eval` on tables: neighbouring cells, cells in place, and truths of tables beside a PDF."""

import json
from pathlib import Path

import pytest

from pecia.evaluation.metrics import Overlap, adjacency, destroyed, in_place
from pecia.evaluation.scores import PageScore, Summary
from pecia.evaluation.truth import TruthError, exhibits
from pecia_schemas.blocks import Cell, Doubt, DoubtReason, Table
from pecia_schemas.media import MediaType
from tests.shared.hand_made_pdfs import text_pdf


def table(*rows: str, spans: dict[tuple[int, int], int] | None = None) -> Table:
    """Return a table of rows with a bar between cells; `spans`: how many columns a cell has."""
    wide = spans or {}
    cells = []
    for row, line in enumerate(rows):
        column = 0
        for text in line.split("|"):
            cells.append(
                Cell(row=row, column=column, column_span=wide.get((row, column), 1), text=text.strip())
            )
            column += cells[-1].column_span
    columns = max(cell.column + cell.column_span for cell in cells)
    return Table(rows=len(rows), columns=columns, cells=tuple(cells))


TRUE = table("|2005|2010", "Sodium|139|141", "Iron||17")


def test_pairs_of_neighbours_are_counted_over_empty_cells_and_tables_that_are_not_there() -> None:
    assert adjacency([TRUE], [TRUE]) == Overlap(8, 8, 8)
    joined = table("|2005|2010", "Sodium|139 141", "Iron||17")
    assert adjacency([joined], [TRUE]) == Overlap(3, 6, 8)
    assert adjacency([TRUE, table("a|b")], [TRUE]).f1 == pytest.approx(16 / 17)
    assert adjacency([], []).f1 is None


def test_a_cell_over_several_columns_has_each_of_them_below_it_once() -> None:
    spanning = table("|Dose", "Drug|mg|days", spans={(0, 1): 2})
    assert adjacency([spanning], [spanning]).true == 4


def test_cells_stand_in_place_whatever_stands_above_the_table() -> None:
    titled = table("||", "|2005|2010", "Sodium|139|141", "Iron||17")
    [(filled, numeric)] = in_place([titled], [TRUE])
    assert (filled, numeric) == ((7, 7), (5, 5))
    [(filled, numeric)] = in_place([table("2005|2010", "139|141")], [TRUE])
    assert (filled, numeric) == ((0, 7), (0, 5))


def test_a_table_with_less_than_half_of_its_cells_is_destroyed_unless_it_is_in_doubt() -> None:
    shares = [filled for filled, _ in in_place([], [TRUE])]
    assert destroyed(shares, []) == (1, 1)
    assert destroyed(shares, [Doubt(reason=DoubtReason.TABLE_UNCLEAR)]) == (0, 1)


def test_the_agreement_of_a_summary_is_a_mean_over_files() -> None:
    def score(file: str, overlap: Overlap) -> PageScore:
        return PageScore(file=file, number=1, kind="table", verdict="ok", adjacency=overlap)

    pages = [score("a", Overlap(10, 10, 10)), score("a", Overlap(0, 10, 10)), score("b", Overlap(1, 1, 1))]
    assert Summary.of(pages).adjacency == 0.75


def test_the_tables_of_a_pdf_stand_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2", reason="pecia[local] brings what reads a PDF's text")
    pdf = tmp_path / "report.pdf"
    pdf.write_bytes(text_pdf(["Sodium 139"]))
    known = tmp_path / "report.tables.json"
    known.write_text(
        json.dumps([{"page": 1, "cells": [cell.model_dump(mode="json") for cell in TRUE.cells]}])
    )

    [shown] = exhibits(tmp_path, [(pdf, MediaType.PDF)])

    assert shown.truth.pages[0].tables == (TRUE,)
    known.write_text('[{"page": 1}]')
    with pytest.raises(TruthError, match=r"report\.tables\.json"):
        list(exhibits(tmp_path, [(pdf, MediaType.PDF)]))
