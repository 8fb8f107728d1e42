import io
import zipfile

import pytest

from fixture_types import MakeFile
from pecia_workers.media.decoding import inspect_file
from pecia_workers.media.pages import Limits, MediaError


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(
                zipfile.ZipInfo(name), "Alma Sampleton"
            )  # without the time, which ids of tests hold
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped("[Content_Types].xml", "word/document.xml"), "an Office document: export it as PDF"),
        (zipped("mimetypeapplication/vnd.oasis.opendocument.text"), "an Office document: export it as PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "an Office document: export it as PDF"),
        (b"{\\rtf1\\ansi Alma}", "an Office document: export it as PDF"),
        (zipped("scan.png"), "an archive: unpack it"),
        (b"\x1f\x8b\x08\0" + bytes(20), "an archive: unpack it"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PostScript: convert it to PDF"),
        (b"\xc5\xd0\xd3\xc6" + bytes(40), "PostScript: convert it to PDF"),
        (
            b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
            "an SVG drawing: export it as PDF",
        ),
        (b"<svg width='1'/>", "an SVG drawing: export it as PDF"),
        (b"\xef\xbb\xbf\n <!DOCTYPE HTML>\n<p>Not found</p>", "a web page, perhaps a server's message"),
        ("<html>안녕</html>".encode("utf-16"), "a web page, perhaps a server's message"),
        (b'<?xml version="1.0"?><ClinicalDocument/>', "XML: it is text already"),
        (b"From: a@example.org\r\nMIME-Version: 1.0\r\n\r\n", "an e-mail: send what is attached to it"),
        ("처방전: Alma Sampleton".encode(), "plain text: there is nothing to recognise"),
        (b"BMI of 25", "plain text: there is nothing to recognise"),
        (b"8BPS\0\1", "a picture of a kind that is not read: save it as PNG or JPEG"),
        (b"P5 is the fifth of the group\n", "plain text: there is nothing to recognise"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "a sound recording"),
        (b"MZ\x90\0\3\0", "a program"),
        (b"\x7fELF\2\1\1" + bytes(200), "a program"),
        (bytes(5_000), "of no kind that is known here"),
        (b"%", "plain text: there is nothing to recognise"),
        (bytes(range(200)), "of no kind that is known here"),
    ],
)
def test_a_file_in_disguise_is_told_apart(content: bytes, says: str, file: MakeFile, limits: Limits) -> None:
    with pytest.raises(MediaError) as caught:
        inspect_file(file(content), limits)
    assert str(caught.value).startswith(f"unsupported_type: The file is {says}")
    assert "Sampleton" not in str(caught.value)
