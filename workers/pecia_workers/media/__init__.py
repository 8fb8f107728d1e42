"""Bytes to pages and clips: what a file is, whether it may be read, and what it shows as upright pixels."""

from pecia_workers.media.decoder import Decoder
from pecia_workers.media.limits import Limits, MediaError
from pecia_workers.media.pages import PageImage, PageInfo

__all__ = ["Decoder", "Limits", "MediaError", "PageImage", "PageInfo"]
