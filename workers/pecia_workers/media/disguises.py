"""What a file is that Pecia does not read, as far as its first bytes tell, and what can be done with it."""

from __future__ import annotations

from typing import Final

_OFFICE: Final = "an Office document: export it as PDF"
_ARCHIVE: Final = "an archive: unpack it and send the files in it"
_POSTSCRIPT: Final = "PostScript: convert it to PDF"
_PICTURE: Final = "a picture of a kind that is not read: save it as PNG or JPEG"
_SOUND: Final = "a sound recording: there is nothing to read or to see in it"
_PROGRAM: Final = "a program"
_HTML: Final = "a web page, perhaps a server's message in the place of a document: print it as PDF"
_SVG: Final = "an SVG drawing: export it as PDF or PNG"
_XML: Final = "XML: it is text already, or needs the program it was made with to export it as PDF"
_MAIL: Final = "an e-mail: send what is attached to it"
_TEXT: Final = "plain text: there is nothing to recognise in it"

_SIGNATURES: Final = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OFFICE),  # .doc, .xls, .ppt, .msg, .hwp
    (b"{\\rtf", _OFFICE),
    (b"%!", _POSTSCRIPT),
    (b"\x04%!", _POSTSCRIPT),
    (b"\xc5\xd0\xd3\xc6", _POSTSCRIPT),  # EPS with a preview
    (b"AT&TFORM", "a DjVu document: convert it to PDF"),
    (b"\x1f\x8b", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE),
    (b"Rar!", _ARCHIVE),
    (b"BZh", _ARCHIVE),
    (b"\xfd7zXZ", _ARCHIVE),
    (b"8BPS", _PICTURE),
    (b"\0\0\0\x0cJXL ", _PICTURE),
    (b"\xff\x0a", _PICTURE),
    (b"II\xbc\x01", _PICTURE),  # JPEG XR
    (b"\0\0\x01\0", _PICTURE),  # icons
    (b"\xd7\xcd\xc6\x9a", _PICTURE),  # WMF
    (b"ID3", _SOUND),
    (b"OggS", _SOUND),
    (b"fLaC", _SOUND),
    (b"MZ", _PROGRAM),
    (b"\x7fELF", _PROGRAM),
)
_ZIP: Final = b"PK\x03\x04"
_OF_OFFICE: Final = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"mimetypeapplication/")
_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_NO_TEXT: Final = bytes({*range(0x20), 0x7F} - {*b"\t\n\r\f\x1b"})


def disguise(head: bytes) -> str | None:
    """Return what a file is and what to do, from its first bytes, to follow `The file is`; None if it is unknown."""
    if head.startswith(_ZIP):
        return _OFFICE if any(mark in head for mark in _OF_OFFICE) else _ARCHIVE
    if head[:4] == b"RIFF":
        return _SOUND if head[8:12] == b"WAVE" else None
    found = next((what for signature, what in _SIGNATURES if head.startswith(signature)), None)
    return found or _text(head)


def _text(head: bytes) -> str | None:
    wide = head.startswith(_MARKS[1:])
    text = head.replace(b"\0", b"") if wide else head
    for mark in _MARKS:
        text = text.removeprefix(mark)
    if text.translate(None, _NO_TEXT) != text:
        return None
    start = text.lstrip().lower()
    if b"<svg" in start:
        return _SVG
    if start.startswith((b"<!doctype html", b"<html")) or b"<html" in start:
        return _HTML
    if start.startswith(b"<?xml"):
        return _XML
    return _MAIL if b"mime-version:" in start else _TEXT
