"""DICOM files, through pydicom: the frames of a picture, as secondary captures have them, or an encapsulated PDF.

Only the elements that describe pixels are read; names and numbers of patients are passed over unread.
"""

import logging
from functools import partial
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr
from pydicom import Dataset, config, dcmread, uid
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut, apply_windowing
from pydicom.pixels.utils import pixel_array

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges
from pecia_workers.media.images import translated_errors
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource
from pecia_workers.media.pdf import PdfPages

config.settings.reading_validation_mode = config.IGNORE
logging.getLogger("pydicom").disabled = True  # it quotes values that it does not understand

_PALETTES: Final = ("Red", "Green", "Blue", "Alpha")
_HEADER: Final = [
    *("SOPClassUID", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in _PALETTES),
    *(f"{colour}PaletteColorLookupTableData" for colour in _PALETTES),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in _PALETTES),
]
_PDF: Final = ["EncapsulatedDocument"]
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
                raise MediaError(FailureCode.EMPTY, "The DICOM file encapsulates a PDF without a byte.")
            return PdfPages(document, limits, password)
        if "SOPClassUID" not in header:
            raise MediaError(FailureCode.DAMAGED, "The DICOM file does not say what it holds.")
        if "Rows" not in header or "Columns" not in header:
            found = "The DICOM file holds neither a picture nor a PDF."
            raise MediaError(FailureCode.UNSUPPORTED_TYPE, found)
        return DicomPages(file, header, limits)


class DicomPages:
    """The frames of a DICOM picture, in shades as its window or rescaling wants them."""

    def __init__(self, file: BinaryIO, header: Dataset, limits: Limits) -> None:
        self._header = header
        self._limits = limits
        self._source: BinaryIO | Dataset = file
        self._syntax = uid.UID(header.file_meta.TransferSyntaxUID)
        if self._syntax.is_deflated or header.preamble is None:  # pydicom cannot seek in it
            self._source = _read(file, specific_tags=[*_HEADER, "PixelData"])

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each frame asked for; reads the header only."""
        with _errors():
            width, height = int(self._header.Columns), int(self._header.Rows)
            chosen = self._limits.choose(int(self._header.get("NumberOfFrames") or 1), pages)
            self._limits.check_page(width, height)
            self._limits.check_total(len(chosen) * width * height)
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
                name = "something that no standard names" if name == self._syntax else name
                found = f"The pixels of the DICOM file are compressed as {name}, which is not decoded here"
                hint = "export it uncompressed (Explicit VR Little Endian)."
                raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"{found}: {hint}")
        return tuple(PageInfo(index=index, width=width, height=height) for index in chosen)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one frame."""
        self.infos(PageRanges(((index + 1, index + 1),)))
        with _errors():
            if not isinstance(self._source, Dataset):
                self._source.seek(0)
            stored = pixel_array(self._source, index=index)
            if stored.ndim == 2 and self._header.PhotometricInterpretation == "PALETTE COLOR":  # noqa: PLR2004  one sample
                entries, first, _bits = self._header.RedPaletteColorLookupTableDescriptor
                palette = apply_color_lut(np.arange(first, first + (entries or 2**16)), self._header)
                stored = apply_color_lut(stored, self._header)
                # Some writers keep 8 bits in entries of 16: then none of them is larger.
                stored = _eight_bits(stored, _BYTE if palette.max() <= _FULL else 2 * _BYTE)
            elif stored.ndim == 2:  # noqa: PLR2004  as above
                stored = np.repeat(self._grey(stored)[:, :, np.newaxis], 3, axis=2)
            else:
                stored = _eight_bits(stored, self._header.BitsStored)
            return np.ascontiguousarray(stored[:, :, :3])

    def close(self) -> None:
        """Free what was read."""
        self._source = Dataset()

    def _grey(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        header = self._header
        values: NDArray[Any] = apply_modality_lut(stored, header)
        is_rescaled = not np.array_equal(values, stored)  # by 1 and 0 it is not
        center = width = None
        if "WindowCenter" in header and "WindowWidth" in header:
            elements = header["WindowCenter"], header["WindowWidth"]
            center, width = (one.value[0] if one.VM > 1 else one.value for one in elements)
        shades: NDArray[Any] = np.zeros(1)
        if center is not None and width is not None and width >= 1:
            window = Dataset()  # the first one, as pydicom wants it, mapping onto 8 bits
            window.PhotometricInterpretation, window.PixelRepresentation = "MONOCHROME2", 0
            window.WindowCenter, window.WindowWidth, window.BitsStored = center, width, _BYTE
            window.VOILUTFunction = header.get("VOILUTFunction") or "LINEAR"
            shades = apply_windowing(values, window)
        if not np.ptp(shades):  # no window, or one that shows nothing
            if header.BitsStored <= _BYTE and header.PixelRepresentation == 0 and not is_rescaled:
                shades = stored * (_FULL / (2**header.BitsStored - 1))
            else:
                low, high = float(values.min()), float(values.max())
                shades = (values - low) * (_FULL / max(high - low, 1e-9))
        grey: NDArray[np.uint8] = np.clip(np.rint(shades), 0, _FULL).astype(np.uint8)
        return np.invert(grey) if header.PhotometricInterpretation == "MONOCHROME1" else grey


def _read(file: BinaryIO, **options: Any) -> Dataset:
    """Return a file's elements. One without a preamble may not say how they are written; then reading shows it."""
    file.seek(0)
    dataset = dcmread(file, force=True, **options)  # what it is was judged before
    if "TransferSyntaxUID" not in dataset.file_meta:
        implicit, _little = dataset.original_encoding
        syntax = uid.ImplicitVRLittleEndian if implicit else uid.ExplicitVRLittleEndian
        dataset.file_meta.TransferSyntaxUID = syntax
    return dataset


def _eight_bits(colours: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return colours of so many bits by their upper eight."""
    return (colours >> max(0, bits - _BYTE)).astype(np.uint8)
