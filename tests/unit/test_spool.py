"""The payloads a worker has at hand."""

from pathlib import Path

from pecia_schemas.payloads import PayloadStore
from pecia_workers.worker.payloads import Spool


async def test_a_spool_does_not_grow_with_the_number_of_small_documents(tmp_path: Path) -> None:
    store = PayloadStore.open(str(tmp_path))
    spool = Spool(store, tmp_path)
    references = [store.put(str(number).encode()) for number in range(1_050)]
    for reference in references:
        async with spool.open(reference) as path:
            assert path.exists()
    assert len(spool._copies) == 1_000
