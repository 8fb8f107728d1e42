"""The payload store over a directory and over a real S3 protocol server: one contract for both."""

import asyncio
import hashlib
import io
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import obstore
import pytest
from pydantic import SecretStr

from pecia_schemas.encryption import Keyring, KeyUnavailableError, new_key
from pecia_schemas.media import MediaType, PayloadRef
from pecia_schemas.payloads import (
    PayloadCorruptError,
    PayloadMissingError,
    PayloadStore,
    key_of,
    payload_named,
    verify,
)
from pecia_workers.media.decoder import Spool

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 100
BIG = b"0123456789abcdef" * (20 * 1024 * 1024 // 16)
KEYS = Keyring.of(SecretStr(json.dumps({"key": new_key()})))


@dataclass
class Case:
    store: PayloadStore
    spool: Spool

    def read(self, reference: PayloadRef) -> bytes:
        async def read() -> bytes:
            async with self.spool.open(reference) as path:
                return path.read_bytes()

        return asyncio.run(read())


@pytest.fixture(params=["directory", "s3"])
def open_case(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Keyring], Case]:
    """Opens the test's own place in a directory, and then in S3, with some keys."""

    def opened(keys: Keyring) -> Case:
        if request.param == "directory":
            store = PayloadStore.open(str(tmp_path / "store"), keys=keys)
        else:
            options = {
                "endpoint": request.getfixturevalue("s3_endpoint"),
                "region": "eu-central-1",
                "access_key_id": "key",
                "secret_access_key": "secret",
            }
            store = PayloadStore.open(f"s3://archive/{tmp_path.name}", options, keys=keys)
        spool = tmp_path / "spool"
        spool.mkdir(exist_ok=True)
        return Case(store, Spool(store, spool))

    return opened


@pytest.fixture
def case(open_case: Callable[[Keyring], Case]) -> Case:
    return open_case(Keyring())


@pytest.fixture
def sealed(open_case: Callable[[Keyring], Case]) -> Case:
    return open_case(KEYS)


@pytest.mark.parametrize("content", [PNG, BIG, b""], ids=["small", "in parts", "empty"])
@pytest.mark.parametrize("form", ["path", "bytes", "file", "pipe", "from a loop"])
def test_what_is_put_comes_back_in_any_form(case: Case, tmp_path: Path, content: bytes, form: str) -> None:
    reference = (
        from_a_loop(case, content)
        if form == "from a loop"
        else case.store.put(_source(form, content, tmp_path))
    )
    assert reference.sha256 == hashlib.sha256(content).hexdigest()
    assert (reference.size, reference.media_type) == (len(content), MediaType.PNG if content is PNG else None)
    assert case.read(reference) == content


def stored(case: Case, reference: PayloadRef) -> bytes:
    return bytes(obstore.get(case.store._store, key_of(reference)).bytes())


def from_a_loop(case: Case, content: bytes) -> PayloadRef:
    """Put content into the store as an asynchronous client does."""
    return asyncio.run(case.store.deposit_async(io.BytesIO(content))).reference


def _source(form: str, content: bytes, tmp_path: Path) -> Path | bytes | IO[bytes]:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

    path = tmp_path / "source"
    path.write_bytes(content)
    forms: dict[str, Callable[[], Path | bytes | IO[bytes]]] = {
        "path": lambda: path,
        "bytes": lambda: content,
        "file": lambda: io.BytesIO(content),
        "pipe": lambda: Pipe(content),
    }
    return forms[form]()


@pytest.mark.parametrize("keys", [Keyring(), KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("content", [PNG, BIG], ids=["small", "in parts"])
def test_equal_files_are_one(open_case: Callable[[Keyring], Case], keys: Keyring, content: bytes) -> None:
    case = open_case(keys)
    first = case.store.put(content)
    written = obstore.head(case.store._store, key_of(first))["last_modified"], stored(case, first)
    assert case.store.put(content) == from_a_loop(case, content) == first
    assert (obstore.head(case.store._store, key_of(first))["last_modified"], stored(case, first)) == written


def test_a_payload_that_was_changed_or_removed_is_told_as_such(case: Case) -> None:
    reference = case.store.put(PNG)
    obstore.put(case.store._store, key_of(reference), PNG[:-1] + b"!")
    with pytest.raises(PayloadCorruptError):
        case.read(reference)
    with pytest.raises(PayloadMissingError):
        case.read(PayloadRef(sha256="0" * 64, size=1, media_type=None))


@pytest.mark.parametrize("keys", [Keyring(), KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("content", [PNG, BIG], ids=["small", "in parts"])
@pytest.mark.parametrize("again", [lambda case, content: case.store.put(content), from_a_loop])
def test_what_is_damaged_in_a_directory_is_mended_by_putting_it_again(
    tmp_path: Path, keys: Keyring, content: bytes, again: Callable[[Case, bytes], PayloadRef]
) -> None:
    """Such as by a power loss: `payload_corrupt` says that the document is to be submitted again."""
    store = PayloadStore.open(str(tmp_path / "store"), keys=keys)
    case = Case(store, Spool(store, tmp_path))
    path = tmp_path / "store" / key_of(store.put(content))
    path.write_bytes(bytes(path.stat().st_size))
    assert case.read(again(case, content)) == content


async def test_many_readers_of_one_payload_fetch_it_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = case.store.put(PNG)
    downloads = []
    download = PayloadStore.download

    async def count(store: PayloadStore, reference: PayloadRef, path: Path) -> None:
        downloads.append(reference)
        await download(store, reference, path)

    def count_in_place(path: Path, reference: PayloadRef) -> None:
        downloads.append(reference)
        verify(path, reference)

    async def read(_: int) -> bytes:
        async with case.spool.open(reference) as path:
            await asyncio.sleep(0.01)
            return path.read_bytes()

    monkeypatch.setattr(PayloadStore, "download", count)
    monkeypatch.setattr("pecia_workers.media.decoder.verify", count_in_place)
    assert await asyncio.gather(*map(read, range(20))) == [PNG] * 20
    assert len(downloads) == 1


async def test_the_spool_forgets_what_nobody_uses_once_it_is_full(case: Case, tmp_path: Path) -> None:
    spool = Spool(case.store, tmp_path / "spool", most_bytes=1000)
    references = [case.store.put(bytes([value]) * 600) for value in range(3)]

    async with spool.open(references[0]) as used:
        for reference in references[1:]:
            async with spool.open(reference):
                pass
        assert used.exists()
    if case.store.path_of(references[0]) is None:
        assert len(list((tmp_path / "spool").iterdir())) == 1


@pytest.mark.parametrize("content", [PNG, BIG, b""], ids=["small", "in parts", "empty"])
def test_what_is_encrypted_comes_back_and_nothing_tells_of_it(sealed: Case, content: bytes) -> None:
    reference = sealed.store.put(content)
    assert (reference.key, reference.size) == ("key", len(content))
    assert reference.sha256 != hashlib.sha256(content).hexdigest()
    assert content[:16] not in stored(sealed, reference)[64:] or not content
    assert sealed.read(reference) == content
    sealed.store.delete(reference)
    assert sealed.read(from_a_loop(sealed, content)) == content


async def test_a_decrypted_copy_outlives_one_sweep_and_not_two(sealed: Case, tmp_path: Path) -> None:
    first, second = sealed.store.put(PNG), sealed.store.put(b"another")

    async def sweep() -> int:
        await sealed.spool.sweep(all_held)
        return len(list((tmp_path / "spool").iterdir()))

    left = []
    async with sealed.spool.open(first):
        async with sealed.spool.open(second):
            left.append(await sweep())
        left += [await sweep(), await sweep()]
    left.append(await sweep())
    async with sealed.spool.open(first):
        pass
    assert [*left, await sweep(), await sweep()] == [2, 2, 1, 1, 1, 0]


async def all_held(_: Collection[str]) -> set[str]:
    return set()


@pytest.mark.parametrize("content", [PNG, BIG], ids=["small", "in parts"])
def test_an_encrypted_document_that_was_cut_or_whose_key_is_not_here_leaves_no_copy(
    sealed: Case, open_case: Callable[[Keyring], Case], tmp_path: Path, content: bytes
) -> None:
    reference = sealed.store.put(content)
    with pytest.raises(KeyUnavailableError, match="'key'"):
        open_case(Keyring()).read(reference.model_copy(update={"secret": None}))
    kept = stored(sealed, reference)
    obstore.put(sealed.store._store, key_of(reference), kept[: len(kept) // 2])
    with pytest.raises(PayloadCorruptError) as caught:
        sealed.read(reference)
    assert str(caught.value) == reference.sha256
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_was_stored_without_keys_can_be_read(case: Case, open_case: Callable[[Keyring], Case]) -> None:
    assert open_case(KEYS).read(case.store.put(PNG)) == PNG


@pytest.mark.parametrize("from_loop", [False, True])
def test_the_store_knows_what_it_holds(case: Case, from_loop: bool) -> None:
    name = payload_named(case.store.put(PNG).sha256)
    for there in (True, False):
        assert case.store.holds(name) is there
        assert asyncio.run(case.store.holds_async(name)) is there
        if from_loop:
            asyncio.run(case.store.delete_async(name))
        else:
            case.store.delete(name)


def test_a_worker_keeps_no_copy_of_a_document_that_no_job_holds(case: Case) -> None:
    held, erased, being_read = (case.store.put(content) for content in (b"held", b"erased", b"being read"))

    async def all_but_the_first(payloads: Collection[str]) -> set[str]:
        return set(payloads) - {held.sha256}

    async def story() -> set[str]:
        for reference in (held, erased):
            async with case.spool.open(reference):
                pass
        async with case.spool.open(being_read) as path:
            await case.spool.sweep(all_but_the_first)
            assert path.read_bytes() == b"being read"
            return {path.name for path in case.spool._directory.iterdir()}

    kept = asyncio.run(story())

    in_place = case.store.path_of(held) is not None
    assert kept == (set() if in_place else {held.sha256, being_read.sha256})
    assert case.read(erased) == b"erased"


def test_documents_are_their_accounts_alone_whatever_the_root(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir(mode=0o755)
    store = PayloadStore.open(str(root))
    store.fetch(store.put(PNG), tmp_path / "copy")
    assert (root / "sha256").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
