"""A file's name is a name: nothing of it becomes a path, here or in the store."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pecia_schemas.media import PayloadRef
from pecia_schemas.payloads import PayloadStore
from pecia_workers.worker.payloads import Spool

CONTENT = b"%PDF-1.7 nothing else"
HOSTILE = ("..", "$(reboot)", "a;b|c&d", "-rf", "%2e%2e%2f", "\n", "\u202efdp.exe", "x" * 200, ".pecia", "~")


def kept(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_document_is_stored_under_the_hash_of_its_content_alone(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in" / f"{name}.pdf"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    store = PayloadStore.open(str(tmp_path / "store"))
    reference = store.put(source)
    assert kept(tmp_path / "store") == [Path("sha256", reference.sha256[:2], reference.sha256)]


@given(name=st.text(min_size=1, max_size=80))
def test_no_text_but_a_hash_names_a_payload(name: str) -> None:
    for text in (name, f"../{name}", "a" * 63 + name[:1], "a" * 64 + name, "A" * 64, "a" * 64 + "\n"):
        if len(text) == 64 and set(text) <= set("0123456789abcdef"):
            continue
        with pytest.raises(ValidationError):
            PayloadRef(sha256=text, size=1, media_type=None)


async def test_a_worker_opens_what_lies_inside_of_the_store_alone(tmp_path: Path) -> None:
    store = PayloadStore.open(str(tmp_path / "store"))
    reference = store.put(CONTENT)
    spool = Spool(store, tmp_path / "spool")
    async with spool.open(reference) as path:
        assert path.is_relative_to(tmp_path / "store")
