"""A long scan is decoded in the memory of a short one."""

import io
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
from PIL import Image

from pecia_workers.media.pages import Limits
from pecia_workers.media.pdf import PdfPages

pytestmark = pytest.mark.gate

PAGES = 100
SIDE = 1000  # pixels
SCAN_BYTES = 1_000_000


def long_scan(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    scan = io.BytesIO()
    Image.fromarray(noise).save(scan, "JPEG", quality=95)
    assert scan.tell() > SCAN_BYTES
    document = pypdfium2.PdfDocument.new()
    for _ in range(PAGES):
        picture = pypdfium2.PdfImage.new(document)
        picture.load_jpeg(io.BytesIO(scan.getvalue()), inline=True)
        picture.set_matrix(pypdfium2.PdfMatrix().scale(100, 100))
        page = document.new_page(100, 100)
        page.insert_obj(picture)
        page.gen_content()
        page.close()
    document.save(path)
    document.close()
    return path


def memory_kib() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def test_memory_does_not_grow_with_the_pages_of_a_pdf(tmp_path: Path, limits: Limits) -> None:
    with long_scan(tmp_path / "scan.pdf").open("rb") as file:
        document = PdfPages(file, limits)
        document.pixels(0)
        before = memory_kib()

        for index in range(PAGES):
            document.pixels(index)

        grown = (memory_kib() - before) * 1024
        document.close()
    assert grown < PAGES * SCAN_BYTES / 2
