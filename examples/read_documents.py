"""Read many documents: submit all, then take each as it completes."""

import sys
from pathlib import Path

from pecia import Client, JobFailedError, ReadDocument


def main(paths: list[str]) -> None:
    """Print the first line of every document, and why those failed that did."""
    with Client() as client:
        group = client.submit_many(ReadDocument(path) for path in paths)
        names = {job.id: Path(path).name for job, path in zip(group, paths, strict=True)}
        for job in group.as_completed(timeout=600):
            try:
                document = job.result()
            except JobFailedError as error:
                print(f"{names[job.id]}: {error.failure.code}: {error.failure.message}")
            else:
                print(f"{names[job.id]}: {len(document.pages)} pages, {document.text[:60]!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
