"""Media: decodes and validates files, and prepares pages and clips as upright pixels."""

from pecia_workers.media.decoder import Decoder
from pecia_workers.media.pages import Limits, MediaError, PageImage, PageInfo

__all__ = ["Decoder", "Limits", "MediaError", "PageImage", "PageInfo"]
