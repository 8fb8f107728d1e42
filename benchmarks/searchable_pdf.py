"""What a searchable PDF of 500 pages costs the client that writes it, beside one of 30: memory, pages per second, size.

The document is a PDF of scans at 150 dots per inch, A4, grey; each page has forty lines of text with their places. Each
document is written by a process of its own, whose peak memory, and that of the process that draws for it, are its
resident size at the highest, by the kernel's account.

Caveats. Neither fleet nor stores take part: this is what `job.save` does once it has result and document. The resident
size of the writer holds what the imports take.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pikepdf
from PIL import Image, ImageDraw, ImageFont

from harness.report import Report, Table, parser
from pecia.formats import pdf
from pecia_schemas.blocks import Box, Line, plain_blocks
from pecia_schemas.results import Document, Page, Verdict
from pecia_workers.media.pictures import open_pictures

A4 = (1240, 1754)
LINES = 40
KB, MB = 1024, 10**6


def line(number: int) -> str:
    """Return a line of a page."""
    return f"{number:03} Amoxicillin 500 mg, dreimal täglich, 아목시실린 세 번"


def scan(target: Path, pages: int) -> None:
    """Write a PDF whose pages are pictures, each a copy of its own."""
    image = Image.new("L", A4, 245)
    font = ImageFont.load_default(22)
    for number in range(LINES):
        ImageDraw.Draw(image).text((120, 40 * number + 80), line(number)[:50], fill=20, font=font)
    image.save(target, "PDF", resolution=150)
    with pikepdf.open(target, allow_overwriting_input=True) as one:
        picture = one.pages[0]
        for _ in range(pages - 1):
            one.pages.append(picture)
        one.save(target)


def read(pages: int) -> Document:
    """Return what was read of so many pages."""
    lines = tuple(
        Line(text=line(n), box=Box(left=120, top=40 * n + 80, right=800, bottom=40 * n + 106), confidence=0.9)
        for n in range(LINES)
    )
    text = "\n".join(one.text for one in lines)
    return Document(
        pages=tuple(
            Page(
                number=n,
                blocks=plain_blocks(text, lines),
                verdict=Verdict.OK,
                width=A4[0],
                height=A4[1],
                engine="test",
            )
            for n in range(1, pages + 1)
        )
    )


def write(source: Path, pages: int) -> dict[str, float]:
    """Write the searchable PDF in this process; return what it took."""
    document, target = read(pages), source.with_name("searchable.pdf")
    began = time.monotonic()
    with open_pictures(source, password=None, quality=75) as pictures:
        pdf.write(document, pictures, target)
    took = time.monotonic() - began
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "pages": pages,
        "writer_mb": peaks[0] * KB / MB,
        "drawer_mb": peaks[1] * KB / MB,
        "pages_per_s": pages / took,
        "kb_per_page": target.stat().st_size / pages / 1000,
    }


def measured(pages: int) -> dict[str, float]:
    """Have another process write the PDF, and return what it took."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "scan.pdf"
        scan(source, pages)
        command = [sys.executable, __file__, "--write", str(source), "--pages", str(pages)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(printed)
    return found


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, nargs="+", default=[30, 500])
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.write:
        print(json.dumps(write(asked.write, asked.pages[0])))
        return
    documents = [measured(pages) for _ in range(asked.rounds) for pages in asked.pages]
    table = Table(
        headings=("pages", "writer, MB", "drawer, MB", "pages/s", "kB per page"),
        rows=[
            [f"{value:,.1f}" if name != "pages" else f"{value}" for name, value in one.items()]
            for one in documents
        ],
    )
    Report(tables=[table], figures={"documents": documents}).tell(as_json=asked.json)


if __name__ == "__main__":
    main()
