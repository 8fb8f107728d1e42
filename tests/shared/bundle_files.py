"""Bundles of scans whose documents are clear: heads, page numbers and patients on every page."""

import io
from collections.abc import Sequence

import pikepdf

from tests.shared.hand_made_pdfs import typeset, written_pdf

MARY = ("Mary Quill", "1961-03-14", "MRN-402118")
JOHN = ("John Feather", "1979-11-02", "MRN-733905")
HOSPITAL = "St. Alban Hospital"


def sheet(patient: tuple[str, str, str], title: str, number: int, count: int, *lines: str) -> list[str]:
    """Return the lines of page `number` of a document of `count` pages."""
    name, born, record = patient
    return [
        HOSPITAL,
        title,
        f"Patient: {name}",
        f"Date of birth: {born}",
        f"Record number: {record}",
        *lines,
        f"Page {number} of {count}",
    ]


def pdf_of(sheets: Sequence[Sequence[str]]) -> bytes:
    """Return a PDF of a page with a text layer for each sheet."""
    with pikepdf.new() as bundle:
        for lines in sheets:
            with pikepdf.open(io.BytesIO(written_pdf(typeset(lines)))) as page:
                bundle.pages.extend(page.pages)
        file = io.BytesIO()
        bundle.save(file)
        return file.getvalue()


LAB = sheet(MARY, "Laboratory report", 1, 2, "Date: 2026-03-02", "Sodium 141 mmol/l", "Potassium 4.2 mmol/l")
LAB_BACK = sheet(MARY, "Laboratory report", 2, 2, "Creatinine 0.9 mg/dl", "Glucose 92 mg/dl")
LETTER = sheet(JOHN, "Discharge letter", 1, 1, "Dear colleague,", "we report on our patient, who goes home.")
PRESCRIPTION = sheet(MARY, "Prescription", 1, 1, "Amoxicillin 500 mg, three times a day, for 7 days")


def three_documents() -> bytes:
    """Return a bundle of four pages: a laboratory report of two, a letter of another patient, a prescription."""
    return pdf_of([LAB, LAB_BACK, LETTER, PRESCRIPTION])
