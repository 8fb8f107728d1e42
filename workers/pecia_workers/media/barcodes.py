"""Barcodes on a page: Code 128, QR, PDF417 and Data Matrix, decoded from the pixels that an engine reads."""

from typing import Final

import numpy as np
import zxingcpp
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, BlockKind, Source
from pecia_workers.layout.lines import box_of

_MOST: Final = 16
_LONGEST: Final = 4296
"""Most characters of a QR code."""


def barcodes_of(pixels: NDArray[np.uint8]) -> tuple[Block, ...]:
    """Return the barcodes of an upright page, from top to bottom, with their text."""
    # Not a constant of the module: what outlives the interpreter is told on the terminal as a leak.
    formats = zxingcpp.BarcodeFormats(
        [
            zxingcpp.BarcodeFormat.Code128,
            zxingcpp.BarcodeFormat.QRCode,
            zxingcpp.BarcodeFormat.PDF417,
            zxingcpp.BarcodeFormat.DataMatrix,
        ]
    )
    found = zxingcpp.read_barcodes(  # one channel is a third of the work
        np.ascontiguousarray(pixels[:, :, 1]), formats=formats, try_rotate=False, try_invert=False
    )
    blocks = []
    for code in found[:_MOST]:
        corners = (
            code.position.top_left,
            code.position.top_right,
            code.position.bottom_right,
            code.position.bottom_left,
        )
        across, down = [corner.x for corner in corners], [corner.y for corner in corners]
        if code.text:
            box = box_of(min(across), min(down), max(across) + 1, max(down) + 1)
            text = code.text[:_LONGEST]
            blocks.append(Block(kind=BlockKind.BARCODE, text=text, box=box, source=Source.OCR))
    return tuple(sorted(blocks, key=lambda block: (block.box.top, block.box.left) if block.box else (0, 0)))
