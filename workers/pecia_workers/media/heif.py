"""Photos of phones (HEIC, HEIF), through libheif."""

from __future__ import annotations

from functools import cache

import pillow_heif


@cache
def register() -> None:
    """Have Pillow open them as `HEIF`, turned as they say: one thread, no thumbnails and no second pictures."""
    pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
