"""Read many documents from an asynchronous program: submit all, then take each as it completes."""

import asyncio
import sys
from pathlib import Path

from pecia import AsyncClient, JobFailedError, ReadDocument


async def main(paths: list[str]) -> None:
    """Print the first line of every document, and why those failed that did."""
    async with AsyncClient() as client:
        group = await client.submit_many(ReadDocument(path) for path in paths)
        names = {job.id: Path(path).name for job, path in zip(group, paths, strict=True)}
        async for job in group.as_completed(timeout=600):
            try:
                document = await job.result()
            except JobFailedError as error:
                print(f"{names[job.id]}: {error.failure.code}: {error.failure.message}")
            else:
                print(f"{names[job.id]}: {len(document.pages)} pages, {document.text[:60]!r}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
