"""Barcodes of a page are decoded from the pixels that an engine reads, and are no text of the page."""

from pathlib import Path

import numpy as np
import pytest
import zxingcpp
from PIL import Image

from pecia_schemas.blocks import BlockKind
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits


@pytest.mark.parametrize("name", ["Code128", "QRCode", "PDF417", "DataMatrix"])
def test_a_barcode_is_a_block_of_its_page_and_no_text(tmp_path: Path, name: str) -> None:
    kind = getattr(zxingcpp.BarcodeFormat, name)
    code = zxingcpp.create_barcode("PECIA-SEPARATOR 7", kind)
    drawn = np.array(zxingcpp.write_barcode_to_image(code, scale=3, add_quiet_zones=True))
    sheet = np.full((1754, 1240), 255, dtype=np.uint8)
    sheet[600 : 600 + drawn.shape[0], 300 : 300 + drawn.shape[1]] = drawn
    path = tmp_path / "sheet.png"
    Image.fromarray(sheet).save(path)

    image = load_page(path, 0, Limits.of(WorkerSettings()))

    (block,) = image.barcodes
    assert (block.kind, block.text) == (BlockKind.BARCODE, "PECIA-SEPARATOR 7")
    assert block.box is not None
    assert 300 <= block.box.left < block.box.right <= 300 + drawn.shape[1]
    assert 600 <= block.box.top < block.box.bottom <= 600 + drawn.shape[0]
    page = Page(number=1, blocks=image.barcodes, verdict=Verdict.OK, width=1240, height=1754, engine="cpu")
    assert page.text == ""
    assert "PECIA-SEPARATOR 7" in page.markdown
    assert Page.model_validate_json(page.stored_json()).blocks == image.barcodes
