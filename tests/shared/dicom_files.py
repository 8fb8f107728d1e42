"""DICOM files as hospitals write them, all of a patient whose name must never be told."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, uid
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate

PATIENT = "Quillfeather^Alma"


def secondary_capture(
    pixels: NDArray[Any],
    photometric: str = "MONOCHROME2",
    *,
    frames: int = 1,
    bits: int | None = None,
    syntax: uid.UID = uid.ExplicitVRLittleEndian,
    compressed: Sequence[bytes] = (),
    **further: Any,
) -> bytes:
    """Return a picture; `compressed` holds its frames if they are not stored as they are."""
    colours = photometric not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR")
    shape = pixels.shape[int(frames > 1) :]
    dataset = _dataset(uid.SecondaryCaptureImageStorage)
    dataset.Rows, dataset.Columns = shape[:2]
    dataset.SamplesPerPixel = 3 if colours else 1
    if colours:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    dataset.NumberOfFrames = frames
    dataset.BitsAllocated = 8 * pixels.dtype.itemsize
    dataset.BitsStored = bits or dataset.BitsAllocated
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(np.issubdtype(pixels.dtype, np.signedinteger))
    dataset.PixelData = encapsulate(list(compressed)) if compressed else pixels.tobytes()
    dataset["PixelData"].VR = "OB" if compressed or pixels.dtype.itemsize == 1 else "OW"
    for name, value in further.items():
        setattr(dataset, name, value)
    return _written(dataset, syntax)


def encapsulated_pdf(document: bytes) -> bytes:
    dataset = _dataset(uid.EncapsulatedPDFStorage)
    dataset.MIMETypeOfEncapsulatedDocument = "application/pdf"
    dataset.EncapsulatedDocument = document
    return _written(dataset, uid.ExplicitVRLittleEndian)


def report_without_pixels() -> bytes:
    """Return a structured report, which is neither picture nor PDF."""
    return _written(_dataset(uid.BasicTextSRStorage), uid.ExplicitVRLittleEndian)


def _dataset(kind: uid.UID) -> Dataset:
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = kind, uid.generate_uid(entropy_srcs=["pecia"])
    dataset.PatientName, dataset.PatientID = PATIENT, "4711"
    return dataset


def _written(dataset: Dataset, syntax: uid.UID) -> bytes:
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()
