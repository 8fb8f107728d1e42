"""An application that logs everything logs nothing of the documents it hands over."""

import io
import logging
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pecia import sources
from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore

WORD = "Quillfeather"
ORIENTATION, DESCRIPTION, ARTIST = 0x0112, 0x010E, 0x013B


def picture(form: str) -> bytes:
    """Return a picture whose notes hold the word."""
    file, exif, note = io.BytesIO(), Image.Exif(), PngInfo()
    exif[ORIENTATION], exif[DESCRIPTION], exif[ARTIST] = 6, WORD, WORD
    note.add_text("Title", WORD)
    Image.new("L", (80, 60), 255).save(file, form, exif=exif, pnginfo=note)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_pictures_notes_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str) -> None:
    content = picture(form)
    assert WORD.encode() in content
    with caplog.at_level(logging.DEBUG):
        stored = sources.store(PayloadStore.open(str(tmp_path)), content)
    assert isinstance(stored.payload, PayloadRef)
    assert stored.payload.media_type
    assert stored.pixels == (None if form == "TIFF" else (60, 80))
    assert WORD not in caplog.text
