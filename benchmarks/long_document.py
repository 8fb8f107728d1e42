"""What a document of 3,000 pages costs a fleet, beside one of 30: memory, time of the first page, pages per second.

For each kind of document a fleet of its own, on real servers. It reads 30 pages, then 3,000; meanwhile the memory of
the ingest worker and of the engine worker is sampled, each with every process it has started, pages shared between
processes counted in parts (PSS). The client reads the pages as they come.

- peak: the highest sample; `grown`: the peak of the long document less that of the short one, 150 MB are allowed;
- first page: seconds from submit until `job.pages()` has yielded page 1;
- reader: what the client's process has grown by while it read all pages.

Caveats. The engine is simulated and answers at once, so this is the cost of cutting, decoding, preparing and storing a
page, and what a real engine holds is not in it. Pages are small: their number is what is measured. The
sampler takes a look every 200 ms and may miss what is shorter.
"""

import argparse
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image
from rich.console import Console

from harness.report import Report, Table, parser
from harness.servers import fleet
from pecia import Client, Job, Prefer, ReadDocument
from pecia_schemas.settings import WorkerSettings

ALLOWED_BYTES = 150 * 10**6
WORKERS = ("ingest", "engine")
SAMPLED_EVERY_S = 0.2
PAGE = (300, 200)
"""Points."""
SCANS = 16
"""Different pictures; every page holds a copy of its own of one of them."""
MB = 10**6
SESSION = 3  # of /proc/PID/stat, counted from 0 behind the program's name

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One document."""

    kind: str
    pages: int
    file_bytes: int
    peak_bytes: dict[str, int]
    """Of each worker."""
    first_page_s: float
    total_s: float
    reader_grown_bytes: int

    @property
    def pages_per_s(self) -> float:
        """Pages read per second, from submit to the last."""
        return self.pages / self.total_s


@dataclass
class Sampler:
    """Keeps the highest memory of each worker while the block runs."""

    sessions: dict[str, int]
    peak: dict[str, int] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample in a thread."""
        thread = threading.Thread(target=self._sample)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLED_EVERY_S):
            now = memory_of(self.sessions)
            self.peak = {name: max(size, self.peak.get(name, 0)) for name, size in now.items()}


def main() -> None:
    """Measure every kind of document and print what came of it."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=3_000, help="of the long document")
    made.add_argument("--short", type=int, default=30, help="pages of the short one")
    made.add_argument("--kinds", nargs="+", choices=WRITERS, default=list(WRITERS))
    made.add_argument("--scan-kb", type=int, default=60, help="of one scanned page, about")
    arguments = made.parse_args()
    say = Console(stderr=True).print
    results = [one for kind in arguments.kinds for one in _measure(kind, arguments, say)]
    _report(results).tell(as_json=arguments.json)


def _measure(kind: str, arguments: argparse.Namespace, say: Progress) -> list[Measured]:
    settings = WorkerSettings(
        engine="simulated:instant", cache=False, flower_port=0, log_format="json", max_pages=10**5
    )
    results = []
    with fleet(settings) as (at_work, client, directory):
        # a worker's session has every process that it starts
        pids = {service.name: service.pid for service in at_work.services()}
        sessions = {name: pid for name in WORKERS if (pid := pids[name]) is not None}
        for pages in (arguments.short, arguments.pages):
            path = directory / f"{pages}.pdf"
            WRITERS[kind](path, pages, arguments.scan_kb)
            say(f"{kind}: {pages} pages, {path.stat().st_size / MB:.1f} MB")
            results.append(_read(kind, pages, path, client, sessions))
    return results


def _read(kind: str, pages: int, path: Path, client: Client, sessions: dict[str, int]) -> Measured:
    sampler = Sampler(sessions)
    before = resident_bytes(os.getpid())
    with sampler.running():
        began = time.monotonic()
        job = client.submit(ReadDocument(path, prefer=Prefer.PIXELS))
        first, count, most = _count_pages(job)
        ended = time.monotonic()
    assert count == pages, f"{count} of {pages} pages came back"  # noqa: S101  or the figures mean nothing
    return Measured(
        kind=kind,
        pages=pages,
        file_bytes=path.stat().st_size,
        peak_bytes=sampler.peak,
        first_page_s=first - began,
        total_s=ended - began,
        reader_grown_bytes=most - before,
    )


def _count_pages(job: Job[Any]) -> tuple[float, int, int]:
    """Return when the first page came, how many came, and the most memory this process had."""
    first, count, most = 0.0, 0, 0
    for _ in job.pages():
        first = first or time.monotonic()
        count += 1
        most = max(most, resident_bytes(os.getpid()))
    return first, count, most


def memory_of(sessions: dict[str, int]) -> dict[str, int]:
    """Return the bytes that the processes of each session hold."""
    held = dict.fromkeys(sessions, 0)
    names = {session: name for name, session in sessions.items()}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and (name := names.get(_session_of(process))):
            held[name] += _proportional_bytes(process)
    return held


def _session_of(process: Path) -> int:
    with suppress(OSError):  # it has ended meanwhile, as below
        return int((process / "stat").read_text().rpartition(")")[2].split()[SESSION])
    return 0


def _proportional_bytes(process: Path) -> int:
    with suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def resident_bytes(pid: int) -> int:
    """Return the memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def write_text(path: Path, pages: int, _scan_kb: int) -> None:
    """Write a PDF whose pages are lines of text."""
    with PdfWriter(path) as pdf:
        font = pdf.add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
        for number in range(pages):
            lines = (f"({number + 1}.{line} Amoxicillin 500 mg three times a day) '" for line in range(10))
            content = f"BT /F 10 Tf 14 TL 20 180 Td {' '.join(lines)} ET".encode()
            pdf.page(content, b"/Font << /F %d 0 R >>" % font)


def write_scan(path: Path, pages: int, scan_kb: int) -> None:
    """Write a PDF whose pages are JPEG pictures, each stored for itself, as scanners do."""
    pictures = [_picture(seed, scan_kb) for seed in range(SCANS)]
    with PdfWriter(path) as pdf:
        for number in range(pages):
            jpeg, (width, height) = pictures[number % SCANS]
            about = b"/Type /XObject /Subtype /Image /ColorSpace /DeviceGray /BitsPerComponent 8 /Filter /DCTDecode"
            size = b" /Width %d /Height %d" % (width, height)
            picture = pdf.add_stream(jpeg, about + size)
            pdf.page(b"q %d 0 0 %d 0 0 cm /P Do Q" % PAGE, b"/XObject << /P %d 0 R >>" % picture)


def _picture(seed: int, kilobytes: int) -> tuple[bytes, tuple[int, int]]:
    """Return a noisy JPEG of about that size, and its pixels: noise takes about 0.8 bytes a pixel."""
    height = int((kilobytes * 1_000 / 0.8 / 1.5) ** 0.5)
    noise = np.random.default_rng(seed).normal(200, 40, (height, height * 3 // 2)).clip(0, 255)
    file = io.BytesIO()
    Image.fromarray(noise.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue(), (height * 3 // 2, height)


class PdfWriter:
    """Writes a PDF page by page, so that this process stays small while the document grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._file.write(b"%PDF-1.4\n")
        self._offsets: list[int] = [0]  # of the page tree, which is written last
        self._pages: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._finish()

    def add(self, body: bytes) -> int:
        """Write one object and return its number."""
        self._offsets.append(self._file.tell())
        number = len(self._offsets)
        self._file.write(b"%d 0 obj %b endobj\n" % (number, body))
        return number

    def add_stream(self, content: bytes, about: bytes = b"") -> int:
        """Write one stream and return its number."""
        return self.add(b"<< %b /Length %d >> stream\n%b\nendstream" % (about, len(content), content))

    def page(self, content: bytes, resources: bytes) -> None:
        """Write one page."""
        stream = self.add_stream(content)
        box = b"/MediaBox [0 0 %d %d]" % PAGE
        about = b"/Type /Page /Parent 1 0 R %b /Contents %d 0 R /Resources << %b >>"
        self._pages.append(self.add(b"<< " + about % (box, stream, resources) + b" >>"))

    def _finish(self) -> None:
        root = self.add(b"<< /Type /Catalog /Pages 1 0 R >>")
        self._offsets[0] = self._file.tell()
        kids = b" ".join(b"%d 0 R" % page for page in self._pages)
        tree = b"/Type /Pages /Count %d /Kids [%b]" % (len(self._pages), kids)
        self._file.write(b"1 0 obj << %b >> endobj\n" % tree)
        start, size = self._file.tell(), len(self._offsets) + 1
        self._file.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
        self._file.writelines(b"%010d 00000 n \n" % offset for offset in self._offsets)
        self._file.write(b"trailer << /Root %d 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF" % (root, size, start))


WRITERS: dict[str, Callable[[Path, int, int], None]] = {"text": write_text, "scan": write_scan}


def _report(results: list[Measured]) -> Report:
    rows = [["file, MB", *(f"{one.file_bytes / MB:,.1f}" for one in results)]]
    for worker in WORKERS:
        rows.append([f"{worker} worker, peak, MB", *(_mb(one.peak_bytes[worker]) for one in results)])
        rows.append([f"{worker} worker, grown (allowed: {_mb(ALLOWED_BYTES)}), MB", *_grown(results, worker)])
    rows += [
        ["reader grown, MB", *(_mb(one.reader_grown_bytes) for one in results)],
        ["first page after, s", *(f"{one.first_page_s:.2f}" for one in results)],
        ["all pages after, s", *(f"{one.total_s:.1f}" for one in results)],
        ["pages/s", *(f"{one.pages_per_s:.1f}" for one in results)],
    ]
    headings = ("", *(f"{one.kind}, {one.pages} pages" for one in results))
    documents = [asdict(one) | {"pages_per_s": one.pages_per_s} for one in results]
    return Report(tables=[Table(headings=headings, rows=rows)], figures={"documents": documents})


def _grown(results: list[Measured], worker: str) -> Iterator[str]:
    short: dict[str, Measured] = {}
    for one in results:
        least = short.setdefault(one.kind, one)
        yield "" if one is least else _mb(one.peak_bytes[worker] - least.peak_bytes[worker])


def _mb(size: int) -> str:
    return f"{size / MB:,.1f}"


if __name__ == "__main__":
    main()
