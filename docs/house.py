"""Draws the floors of `pecia_workers` as import-linter's contract has them: `python docs/house.py`."""

import tomllib
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "house.svg"
CONTRACT = "the fleet is a house of floors, and nothing below knows what is above"
WIDTH, FLOOR, ROOM, GAP = 760, 40, 30, 8


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the highest first."""
    pyproject = tomllib.loads(
        Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    )
    (contract,) = (one for one in pyproject["tool"]["importlinter"]["contracts"] if one["name"] == CONTRACT)
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]


def drawn() -> str:
    """Return the picture as SVG."""
    house = [*floors(), ["pecia_schemas"]]
    height = FLOOR * len(house) + 2 * GAP
    shapes = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            ' font-family="system-ui, sans-serif" font-size="13" text-anchor="middle">'
        ),
        (
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L10 5L0 10z" fill="#57606a"/></marker></defs>'
        ),
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>',
        f'<path d="M24 {GAP + 8}V{height - GAP - 8}" stroke="#57606a" stroke-width="1.4" marker-end="url(#a)"/>',
    ]
    for number, rooms in enumerate(house):
        top = GAP + number * FLOOR
        width = (WIDTH - 56) / len(rooms)
        for place, room in enumerate(rooms):
            left = 48 + place * width
            fill = "#ddf4ff" if "." in room else "#f6f8fa"
            shapes += [
                (
                    f'<rect x="{left:.0f}" y="{top + 5}" width="{width - GAP:.0f}" height="{ROOM}" rx="6" fill="{fill}"'
                    ' stroke="#8c959f"/>'
                ),
                f'<text x="{left + (width - GAP) / 2:.0f}" y="{top + 25}" fill="#1f2328">{escape(room)}</text>',
            ]
    return "\n".join([*shapes, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
