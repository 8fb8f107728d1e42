"""Draws the README's picture of a page and its text while `make up` runs: `python docs/pictures.py`.

Left the page, as `pecia sample` draws it; right what a terminal shows when `pecia read` has read it.
"""

import os
import pty
import re
import subprocess
import tempfile
from base64 import b64encode
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "reading.svg"
PAGE = "papers/lab.png"
COLUMNS = 58
MARGIN = 60  # around the page's ink, in its pixels
GAP = 24


def main() -> None:
    """Write `images/reading.svg`."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        in_terminal(["pecia", "sample", "papers"], folder)
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(f"[bold]$[/] pecia read {PAGE} --wait", highlight=False)
        console.print(Text.from_ansi(in_terminal(["pecia", "read", PAGE, "--wait"], folder)))
        page = Image.open(Path(folder, PAGE)).convert("L")
    # without the web fonts, which a picture in a README cannot load
    terminal = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="pecia"), flags=re.DOTALL)
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', terminal)[0])
    left, top, right, bottom = ImageOps.invert(page).getbbox() or (0, 0, *page.size)
    page = page.crop((left - MARGIN, top - MARGIN, right + MARGIN, bottom + MARGIN))
    page = page.resize((int(page.width * height / page.height), int(height)))
    page.quantize(16).save(packed := BytesIO(), "png", optimize=True)
    picture = f"data:image/png;base64,{b64encode(packed.getvalue()).decode()}"
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {page.width + GAP + width} {height}">'
        f'<image width="{page.width}" height="{height}" href="{picture}"/>'
        + terminal.replace("<svg ", f'<svg x="{page.width + GAP}" width="{width}" height="{height}" ', 1)
        + "</svg>\n"
    )


def in_terminal(command: list[str], folder: str) -> str:
    """Return what a command writes to a terminal. Raises `CalledProcessError` if it fails."""
    ours, its = pty.openpty()
    with subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=subprocess.DEVNULL) as running:
        os.close(its)
        written = bytearray()
        try:
            while more := os.read(ours, 65536):
                written += more
        except OSError:  # how Linux ends a terminal that no process holds
            pass
    os.close(ours)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return written.decode().replace("\r\n", "\n").rstrip()


if __name__ == "__main__":
    main()
