"""PDFs written by hand, object by object: whole ones, and those that no program writes in good faith."""

import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence

import pikepdf
from PIL import Image

SIDE = 72
"""Points, of every page that needs no other size."""

_BOX = b"/MediaBox [0 0 %d %d]"


def assembled(objects: Sequence[bytes]) -> bytes:
    """Return a PDF of these objects, numbered from 1; the first is the catalogue."""
    file, offsets = io.BytesIO(), []
    file.write(b"%PDF-1.7\n")
    for number, body in enumerate(objects, start=1):
        offsets.append(file.tell())
        file.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start, size = file.tell(), len(objects) + 1
    file.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    file.writelines(b"%010d 00000 n \n" % offset for offset in offsets)
    ending = b"trailer << /Root 1 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF\n"
    file.write(ending % (size, start))
    return file.getvalue()


def stream(content: bytes, about: bytes = b"") -> bytes:
    return b"<< /Length %d %b >> stream\n%b\nendstream" % (len(content), about, content)


def deflated(content: bytes) -> bytes:
    return stream(zlib.compress(content, 9), b"/Filter /FlateDecode")


def document(pages: Sequence[bytes], further: Sequence[bytes] = (), *, catalogue: bytes = b"") -> bytes:
    """Return a PDF of pages, given as what stands in their dictionaries; `further` objects are numbered on from 3."""
    first = 3 + len(further)
    kids = b" ".join(b"%d 0 R" % number for number in range(first, first + len(pages)))
    tree = b"<< /Type /Pages /Count %d /Kids [%b] >>" % (len(pages), kids)
    described = [b"<< /Type /Page /Parent 2 0 R %b >>" % page for page in pages]
    root = b"<< /Type /Catalog /Pages 2 0 R %b >>" % catalogue
    return assembled([root, tree, *further, *described])


def box(width: float = SIDE, height: float = SIDE) -> bytes:
    return _BOX % (width, height)


def blank_pdf(pages: int = 1, *, about: bytes = b"") -> bytes:
    return document([box() + about] * pages)


def drawn_pdf(*contents: bytes) -> bytes:
    """Return a PDF of a page for each content stream, which is stored as it is given here."""
    pages = [box() + b" /Contents %d 0 R" % number for number in range(3, 3 + len(contents))]
    return document(pages, contents)


def square() -> bytes:
    return stream(b"10 10 40 40 re f")


def text_pdf(lines: Sequence[str], *, about: bytes = b"") -> bytes:
    """Return a page of words, as a word processor writes it."""
    words = " ".join(f"({line}) '" for line in lines)
    content = stream(f"BT /F 14 Tf 18 TL 20 90 Td {words} ET".encode())
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = box(300, 100) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>"
    return document([page + about], [content, font])


def typeset(
    lines: Sequence[str], *, size: float = 11, left: float = 60, top: float = 780, mode: int = 0
) -> bytes:
    """Return page content that shows these lines, in Latin-1, one below the other."""
    words = b" ".join(b"(%b) '" % re.sub(rb"([()\\])", rb"\\\1", line.encode("latin-1")) for line in lines)
    return b"BT /F %g Tf %g TL %d Tr %g %g Td %b ET\n" % (size, 1.5 * size, mode, left, top, words)


def written_pdf(
    content: bytes,
    *,
    means: Mapping[str, str] | None = None,
    about: bytes = b"",
    picture: bytes = b"",
    program: bytes = b"",
) -> bytes:
    """Return an A4 page of this content, in Helvetica as `F`; it may show a JPEG of 1000 x 400 grey pixels as `P`.

    `means`: what the file says that letters stand for, where it is not what they look like. `program`: a TrueType font
    that is in the file, for Helvetica.
    """
    pairs = b"".join(
        b"<%02x> <%b>\n" % (ord(drawn), said.encode("utf-16-be").hex().encode())
        for drawn, said in (means or {}).items()
    )
    head = b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /M def /CMapType 2 def\n"
    codes = b"1 begincodespacerange <00> <ff> endcodespacerange\n%d beginbfchar\n%bendbfchar endcmap end end"
    meaning = b" /ToUnicode 5 0 R" if means else b""
    kind = b"/TrueType /BaseFont /Some /FontDescriptor 7 0 R" if program else b"/Type1 /BaseFont /Helvetica"
    font = b"<< /Type /Font /Subtype %b /Encoding /WinAnsiEncoding%b >>" % (kind, meaning)
    described = (
        b"<< /Type /FontDescriptor /FontName /Some /Flags 32 /FontBBox [0 -200 1000 900] /ItalicAngle 0"
    )
    described += b" /Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 /FontFile2 8 0 R >>"
    shown = (
        b"/Type /XObject /Subtype /Image /BitsPerComponent 8 /Width 1000 /Height 400 /ColorSpace /DeviceGray"
    )
    resources = b" /Resources << /Font << /F 4 0 R >> /XObject << /P 6 0 R >> >>"
    page = box(595, 842) + b" /Contents 3 0 R" + resources + about
    return document(
        [page],
        [
            stream(content),
            font,
            stream(head + codes % (len(means or {}), pairs)),
            stream(picture, shown + b" /Filter /DCTDecode"),
            *([described, deflated(program)] if program else []),
        ],
    )


def form_pdf(lines: Sequence[str], value: str) -> bytes:
    """Return a page of lines with a form field below them that is filled in."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    fonts = b"/Resources << /Font << /F 4 0 R >> >>"
    shown = stream(
        typeset([value], left=2, top=21), b"/Type /XObject /Subtype /Form /BBox [0 0 200 20] " + fonts
    )
    field = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /F 4 /Rect [60 500 260 520] /V (%b)"
    field += b" /AP << /N 5 0 R >> >>"
    page = box(595, 842) + b" /Contents 3 0 R /Annots [6 0 R] " + fonts
    objects = [stream(typeset(lines)), font, shown, field % value.encode()]
    return document([page], objects, catalogue=b"/AcroForm << /Fields [6 0 R] >>")


def chinese_pdf(text: str) -> bytes:
    """Return a page of Chinese whose font is not in the file."""
    content = stream(b"BT /F 24 Tf 20 50 Td <%b> Tj ET" % text.encode("utf-16-be").hex().encode())
    name = b"/STSong-Light"
    about = (
        b"<< /Type /FontDescriptor /FontName %b /Flags 6 /FontBBox [0 -200 1000 900] /ItalicAngle 0" % name
    )
    system = b"/CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> /FontDescriptor 5 0 R"
    font = (
        b"<< /Type /Font /Subtype /Type0 /BaseFont %b /Encoding /UniGB-UCS2-H /DescendantFonts [6 0 R] >>"
        % name
    )
    inner = b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont %b %b >>" % (name, system)
    page = box(40 + 24 * len(text), 100) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>"
    about += b" /Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >>"
    return document([page], [content, font, about, inner])


def picture_pdf(picture: bytes, size: tuple[int, int], about: bytes) -> bytes:
    """Return a PDF that shows one picture, given as its stream, on every page."""
    image = stream(
        picture, b"/Type /XObject /Subtype /Image /BitsPerComponent 8 /Width %d /Height %d " % size + about
    )
    content = stream(b"q %d 0 0 %d 0 0 cm /P Do Q" % (SIDE, SIDE))
    page = box() + b" /Contents 4 0 R /Resources << /XObject << /P 3 0 R >> >>"
    return document([page], [image, content])


def scanned_pdf(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("L").save(file, "JPEG")
    return picture_pdf(file.getvalue(), image.size, b"/ColorSpace /DeviceGray /Filter /DCTDecode")


def locked_pdf(*, user: str, owner: str) -> bytes:
    """Return a page without content, encrypted by RC4 with 40 bits."""
    file = io.BytesIO()
    with pikepdf.open(io.BytesIO(blank_pdf())) as document:
        document.save(
            file, encryption=pikepdf.Encryption(user=user, owner=owner, R=2, aes=False, metadata=False)
        )
    return file.getvalue()


def without_pages() -> bytes:
    return document([])


def path_of(points: int) -> bytes:
    """A page on which one line goes to and fro through so many points."""
    to_and_fro = b"1 1 l 70 3 l 5 60 l 60 70 l 9 9 l 33 71 l 71 33 l 3 50 l 50 3 l 40 40 l "
    return drawn_pdf(deflated(b"0 0 m " + to_and_fro * (points // 10) + b" S"))


def spaces(megabytes: int, behind: bytes = b"") -> bytes:
    """Return `behind` and so many megabytes of spaces, deflated: the same block again and again."""
    million = b" " * 10**6
    packer = zlib.compressobj(9)
    head = packer.compress(behind + million) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(million) + packer.flush(zlib.Z_FULL_FLUSH)
    check = zlib.adler32(behind + million)
    for _ in range(megabytes - 1):
        check = zlib.adler32(million, check)
    return head + block * (megabytes - 1) + b"\x03\x00" + check.to_bytes(4, "big")


def content_bomb(megabytes: int) -> bytes:
    """A page whose content is spaces, deflated twice: a thousandth of a thousandth."""
    packed = zlib.compress(spaces(megabytes), 9)
    return drawn_pdf(stream(packed, b"/Filter [/FlateDecode /FlateDecode]"))


def picture_bomb(side: int) -> bytes:
    """A page with a picture of `side` x `side` pixels of which there are only a few bytes."""
    about = b"/ColorSpace /DeviceRGB /Filter /FlateDecode"
    return picture_pdf(zlib.compress(bytes(10_000)), (side, side), about)


def object_stream_bomb(megabytes: int) -> bytes:
    """A PDF whose catalogue lies in a compressed object stream, with nothing but spaces behind it."""
    packed = spaces(megabytes, behind=b"1 0 << /Type /Catalog /Pages 2 0 R >>")
    table = b"%PDF-1.7\n"
    bodies = {
        4: stream(packed, b"/Type /ObjStm /N 1 /First 4 /Filter /FlateDecode"),
        2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
        3: b"<< /Type /Page /Parent 2 0 R %b >>" % box(),
    }
    places = {1: (2, 4, 0)}
    for number, body in bodies.items():
        places[number] = (1, len(table), 0)
        table += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(table)
    places |= {0: (0, 0, 65_535), 5: (1, start, 0)}
    entries = b"".join(
        kind.to_bytes(1, "big") + where.to_bytes(4, "big") + index.to_bytes(2, "big")
        for kind, where, index in (places[number] for number in range(6))
    )
    crossing = stream(entries, b"/Type /XRef /Size 6 /W [1 4 2] /Root 1 0 R")
    return table + b"5 0 obj\n%b\nendobj\nstartxref\n%d\n%%%%EOF\n" % (crossing, start)


def tree_loop() -> bytes:
    return assembled(
        [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 2 /Kids [2 0 R 2 0 R] >>"]
    )


def deep_tree(levels: int) -> bytes:
    """A page at the end of a tree of so many levels."""
    nodes = [b"<< /Type /Pages /Count 1 /Kids [%d 0 R] >>" % (number + 1) for number in range(2, 2 + levels)]
    leaf = b"<< /Type /Page %b >>" % box()
    return assembled([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, leaf])


def deep_nesting(levels: int) -> bytes:
    """A page with an array in an array in an array …"""
    return blank_pdf(about=b" /Deep " + b"[" * levels + b"]" * levels)


def false_count(count: int) -> bytes:
    """A page tree that promises more pages than it has."""
    return blank_pdf().replace(b"/Count 1", b"/Count %d" % count)


def crossing_loop() -> bytes:
    """A cross-reference table whose predecessor is itself."""
    whole = blank_pdf()
    return whole.replace(b"trailer << ", b"trailer << /Prev %d " % whole.index(b"xref\n"))


def form_loop() -> bytes:
    return document([box() + b" /Contents 4 0 R" + _FORMS % 3], [_form(b"/F Do", 3), stream(b"/F Do")])


def forms_of_forms(levels: int) -> bytes:
    """A page that shows ten forms, each of which shows ten, and so on."""
    ten = b"/F Do " * 10
    forms = [_form(ten, number + 1) for number in range(3, 3 + levels)]
    last = stream(b"1 1 9 9 re f", b"/Type /XObject /Subtype /Form /BBox [0 0 72 72]")
    page = box() + b" /Contents %d 0 R" % (4 + levels) + _FORMS % 3
    return document([page], [*forms, last, stream(ten)])


_FORMS = b" /Resources << /XObject << /F %d 0 R >> >>"


def _form(content: bytes, shown: int) -> bytes:
    return stream(content, b"/Type /XObject /Subtype /Form /BBox [0 0 72 72]" + _FORMS % shown)


def letters_pdf(font: bytes, *further: bytes, shown: bytes = b"(aaaa)") -> bytes:
    """Return a page that shows letters in a font, object 4, and further objects from 5 on."""
    page = box() + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>"
    return document([page], [stream(b"BT /F 12 Tf 9 30 Td %b Tj ET" % shown), font, *further])


def letters_of_letters() -> bytes:
    """A page in a font each of whose letters shows itself ten times."""
    font = b"""<< /Type /Font /Subtype /Type3 /FontBBox [0 0 1 1] /FontMatrix [1 0 0 1 0 0] /FirstChar 97 /LastChar 97
        /Widths [1] /Encoding << /Differences [97 /a] >> /CharProcs << /a 5 0 R >>
        /Resources << /Font << /F 4 0 R >> >> >>"""
    return letters_pdf(font, stream(b"1 0 d0 0 0 1 1 re f BT /F 1 Tf (aaaaaaaaaa) Tj ET"))


def unicode_map(ranges: int) -> bytes:
    """A page whose font says of all codes there are what they mean, so many times."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 5 0 R >>"
    content = b"begincmap 1 begincodespacerange <00000000> <FFFFFFFF> endcodespacerange %d beginbfrange %b endbfrange"
    return letters_pdf(font, deflated(content % (ranges, b"<00000000> <FFFFFFFE> <0041> " * ranges)))


def code_map(ranges: int) -> bytes:
    """A page of a composite font whose codes are mapped to glyphs, all of them, so many times; and by itself first."""
    font = b"<< /Type /Font /Subtype /Type0 /BaseFont /Some /Encoding 5 0 R /DescendantFonts [6 0 R] >>"
    content = b"begincmap 1 begincodespacerange <0000> <FFFF> endcodespacerange %d begincidrange %b endcidrange endcmap"
    codes = zlib.compress(content % (ranges, b"<0000> <FFFF> 0 " * ranges), 9)
    about = b"/Type /CMap /CMapName /Some /UseCMap 5 0 R /Filter /FlateDecode"
    system = b"/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >>"
    inner = b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Some %b /FontDescriptor 7 0 R >>" % system
    described = b"<< /Type /FontDescriptor /FontName /Some /Flags 4 /FontBBox [0 0 1000 1000] >>"
    return letters_pdf(font, stream(codes, about), inner, described, shown=b"<00410042>")


def font_program(content: bytes, kind: bytes = b"FontFile2") -> bytes:
    """A page in a font whose program is this."""
    font = b"<< /Type /Font /Subtype /TrueType /BaseFont /Some /FontDescriptor 5 0 R >>"
    described = (
        b"<< /Type /FontDescriptor /FontName /Some /Flags 4 /FontBBox [0 0 1000 1000] /%b 6 0 R >>" % kind
    )
    return letters_pdf(font, described, deflated(content))


def with_action() -> bytes:
    """A PDF that wants to run a script when it is opened, and carries a file."""
    script = b"<< /S /JavaScript /JS (app.alert\\('x'\\); while \\(true\\) {}) >>"
    names = b"<< /JavaScript << /Names [(a) 3 0 R] >> /EmbeddedFiles << /Names [(b) 4 0 R] >> >>"
    file = b"<< /Type /Filespec /F (run.exe) /EF << /F 5 0 R >> >>"
    program = stream(b"MZ" + bytes(60), b"/Type /EmbeddedFile")
    catalogue = b"/OpenAction 3 0 R /Names %b" % names
    return document([box()], [script, file, program], catalogue=catalogue)


def with_lost_page() -> bytes:
    """Three pages, of which the second is not there."""
    whole = drawn_pdf(square(), square(), square())
    return whole.replace(b"/Kids [6 0 R 7 0 R 8 0 R]", b"/Kids [6 0 R 0 0 R 8 0 R]")


def with_damaged_picture() -> bytes:
    """Two scanned pages, of which the second's picture is no picture."""
    about = b"/Type /XObject /Subtype /Image /BitsPerComponent 8 /Width 60 /Height 60 /ColorSpace /DeviceGray"
    file = io.BytesIO()
    Image.effect_noise((60, 60), 80).save(file, "JPEG")
    whole = stream(file.getvalue(), about + b" /Filter /DCTDecode")
    broken = stream(bytes(400), about + b" /Filter /DCTDecode")
    content = stream(b"q 72 0 0 72 0 0 cm /P Do Q")
    page = b" /Contents 5 0 R /Resources << /XObject << /P %d 0 R >> >>"
    return document([box() + page % 3, box() + page % 4], [whole, broken, content])


def without_crossings() -> bytes:
    """A PDF of which only objects and trailer are left: where they lie must be found out."""
    head, _, rest = blank_pdf().partition(b"xref\n")
    return head + rest[rest.index(b"trailer") :].partition(b"startxref")[0]


def rotated(degrees: int) -> Callable[[], bytes]:
    return lambda: text_pdf(["Turned by the file"], about=b" /Rotate %d" % degrees)
