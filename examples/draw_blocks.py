"""Draw what was found on a picture of a page: its blocks in reading order, cells, marks and doubts."""

import sys

from PIL import Image, ImageDraw

from pecia import Client, ReadDocument

COLOURS = {
    "table": "#b35900",
    "title": "#7a1fa2",
    "heading": "#7a1fa2",
    "header": "#555555",
    "footer": "#555555",
}


def main(path: str, drawn: str) -> None:
    """Read the picture at `path` and save it with its blocks as `drawn`."""
    with Client() as client:
        (page,) = client.submit(ReadDocument(path, prepare=())).result(timeout=600).pages
    with Image.open(path) as opened:
        picture = opened.convert("RGB").resize((page.width, page.height))
    draw = ImageDraw.Draw(picture, "RGBA")
    for number, block in enumerate(page.blocks, start=1):
        if block.box is None:  # a language model does not say where its text stands
            continue
        colour, box = COLOURS.get(block.kind, "#1565c0"), block.box
        draw.rectangle((box.left - 4, box.top - 4, box.right + 4, box.bottom + 4), outline=colour, width=2)
        draw.text((box.left, box.top - 16), f"{number} {block.kind}", fill=colour)
        cells = block.table.cells if block.table else ()
        for small in [*(cell.box for cell in cells if cell.box), *(mark.box for mark in block.marks)]:
            draw.rectangle((small.left, small.top, small.right, small.bottom), outline=colour)
    for doubt in page.doubts:
        if doubt.box is not None:
            spot = doubt.box
            draw.rectangle((spot.left, spot.top, spot.right, spot.bottom), fill=(255, 0, 0, 60))
    picture.save(drawn)
    print(
        f"{page.verdict}, coverage {page.coverage}, {len(page.blocks)} blocks, {len(page.doubts)} doubts: {drawn}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
