"""DICOM files, through pydicom: the frames of a picture, such as a secondary capture, or an encapsulated PDF.

Only elements that describe pixels are read; patients' names and numbers are skipped.
"""

import io
import logging
import struct
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from pydantic import SecretStr
from pydicom import DataElement, Dataset, config, dcmread, uid
from pydicom.encaps import generate_fragments, get_frame, parse_basic_offsets
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut, apply_windowing
from pydicom.pixels.utils import pixel_array

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges
from pecia_workers.media.damage import is_jpeg_broken
from pecia_workers.media.images import resized, translated_errors
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource
from pecia_workers.media.pdf import PdfPages

config.settings.reading_validation_mode = config.IGNORE
logging.getLogger("pydicom").disabled = True  # it quotes values that it does not understand

_SPACINGS: Final = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
_SHOWING: Final = (
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("PixelAspectRatio", *_SPACINGS),
)
"""Elements that map stored values to shades, at the root of a file or in its functional groups."""
_GROUPS: Final = ("FrameVOILUTSequence", "PixelValueTransformationSequence", "PixelMeasuresSequence")
_OVERLAYS: Final = range(0x6000, 0x6020, 2)
_OF_OVERLAY: Final = (0x10, 0x11, 0x15, 0x40, 0x50, 0x51, 0x100, 0x102, 0x3000)
_WIDE: Final = 7  # pixels, wider than a stroke of text
_AROUND: Final = 8  # pixels, whose mean decides whether an overlay is seen better in black or in white
_PALETTES: Final = ("Red", "Green", "Blue", "Alpha")
_HEADER: Final[list[str | int]] = [
    *("SOPClassUID", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *(
        "Rows",
        "Columns",
        "BitsAllocated",
        "BitsStored",
        "HighBit",
        "PixelRepresentation",
        "PixelPaddingValue",
    ),
    *_SHOWING,
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *(group << 16 | element for group in _OVERLAYS for element in _OF_OVERLAY),
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in _PALETTES),
    *(f"{colour}PaletteColorLookupTableData" for colour in _PALETTES),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in _PALETTES),
]
_PDF: Final = ["EncapsulatedDocument"]
_STARTS: Final = (
    b"\xff\xd8\xff",
    b"\xff\x4f\xff\x51",
    *(bytes((segments, 0, 0, 0)) for segments in range(1, 16)),
)
"""First bytes of frames: JPEG, JPEG 2000, run lengths."""
_OUTLIERS: Final = 1e-5
"""Share of a picture's pixels at either end that do not decide what is black and what is white."""
_BYTE: Final = 8  # bits
_FULL: Final = 255


_errors = partial(translated_errors, "The DICOM file")


def open_dicom(file: BinaryIO, limits: Limits, password: SecretStr | None = None) -> PageSource:
    """Return the pages of a DICOM file. Raises `MediaError` if it holds neither a picture nor a PDF."""
    with _errors():
        header = _read(file, stop_before_pixels=True, specific_tags=_HEADER)
        if header.get("SOPClassUID") == uid.EncapsulatedPDFStorage:
            document = _read(file, specific_tags=_PDF).get("EncapsulatedDocument")
            if not isinstance(document, bytes) or not document:
                raise MediaError(FailureCode.EMPTY, "The DICOM file encapsulates an empty PDF.")
            return PdfPages(document, limits, password)
        if "SOPClassUID" not in header:
            raise MediaError(FailureCode.DAMAGED, "The DICOM file does not declare its content.")
        if "Rows" not in header or "Columns" not in header:
            found = "The DICOM file contains neither a picture nor a PDF."
            raise MediaError(FailureCode.UNSUPPORTED_TYPE, found)
        return DicomPages(file, header, limits)


class DicomPages(PageSource):
    """The frames of a DICOM picture, in shades by its window or rescaling."""

    def __init__(self, file: BinaryIO, header: Dataset, limits: Limits) -> None:
        self._header = header
        self._limits = limits
        self._source: BinaryIO | Dataset = file
        self._syntax = uid.UID(header.file_meta.TransferSyntaxUID)
        self._stored, self._starts_at = file, file.tell() + (8 if self._syntax.is_implicit_VR else 12)
        if self._syntax.is_deflated or header.preamble is None:  # pydicom cannot seek in it
            self._source = _read(file, specific_tags=[*_HEADER, "PixelData"])
            self._stored, self._starts_at = io.BytesIO(self._source.get("PixelData") or b""), 0
        self._frames = self._count()
        self.damage: tuple[tuple[float, float, float, float], ...] = ()
        """Damaged places of the frame decoded last, in its pixels."""

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each requested frame; reads the header only."""
        with _errors():
            width, height = int(self._header.Columns), int(self._header.Rows)
            chosen = self._limits.choose(self._frames, pages)
            self._limits.check_page(width, height)
            sizes = [self._limits.square(width, height, _aspect(self._showing(index))) for index in chosen]
            self._limits.check_total(sum(wide * high for wide, high in sizes))
            try:
                decoder = get_decoder(self._syntax)
                is_decoded = decoder.is_available
                if self._syntax == uid.JPEGExtended12Bit and self._header.BitsStored > _BYTE:
                    # Pillow is always there, and no JPEG of 12 bits is for it.
                    is_decoded = bool(set(decoder.available_plugins) - {"pillow"})
            except NotImplementedError:
                is_decoded = False
            if not is_decoded:
                name = self._syntax.name
                name = "something non-standard" if name == self._syntax else name
                found = f"The pixels of the DICOM file are compressed as {name}, which is not decoded here"
                hint = "export it uncompressed (Explicit VR Little Endian)."
                raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"{found}: {hint}")
        return tuple(
            PageInfo(index=index, width=wide, height=high)
            for index, (wide, high) in zip(chosen, sizes, strict=True)
        )

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one frame."""
        (info,) = self.infos(PageRanges(((index + 1, index + 1),)))
        with _errors():
            bits, spare = self._header.BitsStored, 0
            if not self._syntax.is_compressed:  # some writers leave the lower bits free
                spare = max(0, min(self._header.BitsAllocated, self._header.get("HighBit", 0) + 1) - bits)
            stored: NDArray[Any] = self._decoded(index, bits_stored=bits + spare) >> spare
            written = stored
            if stored.dtype.itemsize * _BYTE > bits and not self._syntax.is_compressed:
                written = self._decoded(index, correct_unused_bits=False)
            if stored.ndim == 2 and self._header.PhotometricInterpretation == "PALETTE COLOR":  # noqa: PLR2004  one sample
                entries, first, _bits = self._header.RedPaletteColorLookupTableDescriptor
                palette = apply_color_lut(np.arange(first, first + (entries or 2**16)), self._header)
                stored = apply_color_lut(stored, self._header)
                # Some writers keep 8 bits in entries of 16: then none of them is larger.
                stored = _eight_bits(stored, _BYTE if palette.max() <= _FULL else 2 * _BYTE)
            elif stored.ndim == 2:  # noqa: PLR2004  as above
                stored = np.repeat(self._grey(stored, self._showing(index))[:, :, np.newaxis], 3, axis=2)
            else:
                stored = _eight_bits(stored, bits)
            pixels = np.ascontiguousarray(stored[:, :, :3])
            for group in _OVERLAYS:
                self._lay_over(pixels, group, index, written)
            self.damage = ((0, 0, info.width, info.height),) if self._is_broken(index) else ()
            return resized(pixels, info.width, info.height)

    def close(self) -> None:
        """Free the decoded frames."""
        self._source = Dataset()

    def _count(self) -> int:
        """Return how many frames are stored, which may be more than the file says."""
        header, stated, length = self._header, int(self._header.get("NumberOfFrames") or 1), 0
        with suppress(AttributeError, TypeError, ValueError, ZeroDivisionError, struct.error):
            if not self._syntax.is_compressed:
                bits = header.Rows * header.Columns * header.SamplesPerPixel * header.BitsAllocated
                length = len(getattr(self._source, "PixelData", b""))
                if self._starts_at:
                    self._stored.seek(self._starts_at - 4)
                    order = "<" if self._syntax.is_little_endian else ">"
                    (length,) = struct.unpack(f"{order}I", self._stored.read(4))
                return max(stated, _BYTE * length // int(bits))
            self._stored.seek(self._starts_at)
            starts = parse_basic_offsets(self._stored)
            fragments = generate_fragments(self._stored) if not starts[1:] else ()
            return max(stated, len(starts), sum(part.startswith(_STARTS) for part in fragments))
        return stated

    def _decoded(self, index: int, **options: Any) -> NDArray[Any]:
        if not isinstance(self._source, Dataset):
            self._source.seek(0)
        frames: NDArray[Any] = pixel_array(
            self._source, index=index, number_of_frames=self._frames, **options
        )
        return frames

    def _is_broken(self, index: int) -> bool:
        """Return whether a JPEG frame has lost bytes, which its decoder does not report."""
        if self._syntax not in uid.JPEGTransferSyntaxes:
            return False
        self._stored.seek(self._starts_at)
        return is_jpeg_broken(get_frame(self._stored, index, number_of_frames=self._frames))

    def _showing(self, index: int) -> Dataset:
        """Return the elements that map a frame's values: of its functional groups, the shared ones, or the root."""
        header, showing = self._header, Dataset()
        frames = header.get("PerFrameFunctionalGroupsSequence") or ()
        groups = [*(header.get("SharedFunctionalGroupsSequence") or ())[:1], *frames[index : index + 1]]
        items = (item for group in groups for name in _GROUPS for item in (group.get(name) or ())[:1])
        for source in (header, *items):
            showing.update(
                {source[name].tag: source[name] for name in _SHOWING if source.get(name) is not None}
            )
        showing.file_meta = header.file_meta
        return showing

    def _grey(self, stored: NDArray[Any], showing: Dataset) -> NDArray[np.uint8]:
        header = self._header
        values: NDArray[Any] = apply_modality_lut(stored, showing)
        is_rescaled = not np.array_equal(values, stored)  # by 1 and 0 it is not
        center = width = None
        if "WindowCenter" in showing and "WindowWidth" in showing:
            elements = showing["WindowCenter"], showing["WindowWidth"]
            center, width = (one.value[0] if one.VM > 1 else one.value for one in elements)
        shades: NDArray[Any] = np.zeros(1)
        if center is not None and width is not None and width >= 1:
            window = Dataset()  # the first one, as pydicom wants it, mapping onto 8 bits
            window.PhotometricInterpretation, window.PixelRepresentation = "MONOCHROME2", 0
            window.WindowCenter, window.WindowWidth, window.BitsStored = center, width, _BYTE
            window.VOILUTFunction = showing.get("VOILUTFunction") or "LINEAR"
            shades = apply_windowing(values, window)
        if not np.ptp(shades) and (tables := showing.get("VOILUTSequence")):
            with suppress(AttributeError, TypeError, ValueError):
                shades = self._looked_up(values, tables[0])
        if not np.ptp(shades):  # no window, or an empty window
            if header.BitsStored <= _BYTE and header.PixelRepresentation == 0 and not is_rescaled:
                shades = stored * (_FULL / (2**header.BitsStored - 1))
            else:
                shown = values[stored != header.get("PixelPaddingValue")]
                shown = shown if shown.size else values
                low, high = map(float, np.quantile(shown, (_OUTLIERS, 1 - _OUTLIERS), method="nearest"))
                shades = (values - low) * (_FULL / max(high - low, 1e-9))
        grey: NDArray[np.uint8] = np.clip(np.rint(shades), 0, _FULL).astype(np.uint8)
        return np.invert(grey) if header.PhotometricInterpretation == "MONOCHROME1" else grey

    def _looked_up(self, values: NDArray[Any], table: Dataset) -> NDArray[Any]:
        """Return shades by a VOI LUT. pydicom's own does not support 8-bit entries packed in words."""
        entries, first, bits = map(int, table.LUTDescriptor)
        if self._header.PixelRepresentation and first >= 2**15:  # written without its sign
            first -= 2**16
        shades, entries = table.LUTData, entries or 2**16
        if isinstance(shades, bytes):
            order = "<" if self._syntax.is_little_endian else ">"
            shades = np.frombuffer(shades, f"{order}u{1 if len(shades) < 2 * entries else 2}")
        shades = np.asarray(shades)[:entries]
        places = np.clip(np.rint(values).astype(np.int64) - first, 0, len(shades) - 1)
        return shades[places] * (_FULL / max(2**bits - 1, int(shades.max())))  # type: ignore[no-any-return]

    def _lay_over(self, pixels: NDArray[np.uint8], group: int, index: int, written: NDArray[Any]) -> None:
        """Draw an overlay's text and lines on a frame; of regions of interest, no wide parts, which may cover text.

        Older files store an overlay in an unused bit of the pixels.
        """
        header, tag = self._header, group << 16
        bit = int(header.get(tag | 0x102, _NOTHING).value or 0)
        if header.get(tag | 0x3000, _NOTHING).value:
            plane: NDArray[Any] = header.overlay_array(group)
        elif written.ndim == 2 and self._header.BitsStored <= bit < written.dtype.itemsize * _BYTE:  # noqa: PLR2004  one sample
            plane = (written >> bit) & 1
        else:
            return
        if tag | 0x15 in header or tag | 0x51 in header:  # else it lies over every frame
            index -= int(header.get(tag | 0x51, _NOTHING).value or 1) - 1
            if not 0 <= index < int(header.get(tag | 0x15, _NOTHING).value or 1):
                return
            plane = plane if plane.ndim == 2 else plane[index]  # noqa: PLR2004  of one frame alone
        if header.get(tag | 0x40, _NOTHING).value != "G":
            wide = Image.fromarray((plane != 0).astype(np.uint8))
            wide = wide.filter(ImageFilter.MinFilter(_WIDE)).filter(ImageFilter.MaxFilter(_WIDE))
            plane = np.where(np.asarray(wide), 0, plane)
        top, left = (int(place) - 1 for place in header.get(tag | 0x50, _NOTHING).value or (1, 1))
        rows, columns = np.nonzero(plane)
        rows, columns = rows + top, columns + left
        is_inside = (rows >= 0) & (rows < len(pixels)) & (columns >= 0) & (columns < pixels.shape[1])
        rows, columns = rows[is_inside], columns[is_inside]
        around = np.asarray(Image.fromarray(pixels).convert("L").filter(ImageFilter.BoxBlur(_AROUND)))
        is_light = around[rows, columns] > _FULL // 2
        pixels[rows, columns] = np.where(is_light, 0, _FULL)[:, np.newaxis]


_NOTHING: Final = DataElement(0x60000015, "IS", None)


def _aspect(showing: Dataset) -> float:
    """Return the ratio of a pixel's height to its width."""
    for name in ("PixelAspectRatio", *_SPACINGS):
        with suppress(TypeError, ValueError, ZeroDivisionError):
            down, across = map(float, showing.get(name))
            return down / across
    return 1.0


def _read(file: BinaryIO, **options: Any) -> Dataset:
    """Return a file's elements. Without a preamble, the encoding may be undeclared and is found by trying."""
    file.seek(0)
    dataset = dcmread(file, force=True, **options)  # what it is was judged before
    if "TransferSyntaxUID" not in dataset.file_meta:
        implicit, _little = dataset.original_encoding
        syntax = uid.ImplicitVRLittleEndian if implicit else uid.ExplicitVRLittleEndian
        dataset.file_meta.TransferSyntaxUID = syntax
    return dataset


def _eight_bits(colours: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return colours of `bits` bits by their upper eight."""
    return (colours >> max(0, bits - _BYTE)).astype(np.uint8)
