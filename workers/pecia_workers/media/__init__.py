"""Bytes to pages and clips: what a file is, whether it may be read, and what it shows as upright pixels."""

from pecia_workers.media.decoder import Decoder
from pecia_workers.media.pages import Limits, MediaError, PageImage, PageInfo

__all__ = ["Decoder", "Limits", "MediaError", "PageImage", "PageInfo"]
