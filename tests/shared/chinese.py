"""The font of Chinese pages, from npm's registry, pinned by checksum as the Korean one is."""

from functools import cache
from pathlib import Path
from typing import Final

from tests.shared.npm_files import Download, fetched

_FONT: Final = Download(
    package="@fontsource/noto-sans-sc@5.2.6",
    member="package/files/noto-sans-sc-chinese-simplified-400-normal.woff2",
    sha256="eb385eca10dd39caff881c38338aefccecfaec6b42cc016fbe81434e388d6c3a",
)


@cache
def chinese_font() -> Path:
    """A font with simplified Chinese and Latin signs. Raises `NothingThereError`."""
    return fetched(_FONT)
