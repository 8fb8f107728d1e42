"""Sealed files: any size, in pieces of any size, and nothing of them can be cut off, changed, moved or swapped."""

import base64
import io
import json

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pecia_schemas import encryption
from pecia_schemas.encryption import Keyring, KeyUnavailableError, Unsealer, new_key, seal, sealed_size

KEY = new_key()
KEYS = Keyring.of(SecretStr(json.dumps({"now": KEY, "then": new_key()})))
NAME = "ab" * 32
CHUNK, TAG = 16, 16
HEADER = len(b"PECIA\x01\x03now") + 16
contents = st.binary(max_size=5 * CHUNK)
long_contents = st.binary(min_size=2 * CHUNK, max_size=5 * CHUNK)


def sealed(content: bytes, name: str = NAME, key: str = "now") -> bytes:
    return b"".join(seal(io.BytesIO(content), name, KEYS, key, chunk=CHUNK))


def unsealed(stored: bytes, *, name: str = NAME, keys: Keyring = KEYS, piece: int = 7) -> bytes:
    unsealer = Unsealer(name, keys, "now", chunk=CHUNK)
    pieces = [stored[start : start + piece] for start in range(0, len(stored), piece)]
    return b"".join([*map(unsealer.feed, pieces), unsealer.end()])


def refused(stored: bytes, content: bytes, **how: str) -> None:
    """Nothing but what was sealed comes out, and the end says that it was not the whole of it."""
    unsealer = Unsealer(how.get("name", NAME), KEYS, "now", chunk=CHUNK)
    out = b""
    with pytest.raises(ValueError, match=r"^$"):  # noqa: PT012  what came out before is looked at
        for start in range(0, len(stored), 7):
            out += unsealer.feed(stored[start : start + 7])
        unsealer.end()
    assert content.startswith(out)


@given(contents, st.integers(1, 100))
def test_what_is_sealed_comes_back_in_pieces_of_any_size(content: bytes, piece: int) -> None:
    assert unsealed(sealed(content), piece=piece) == content


@given(st.integers(0, 5 * CHUNK))
def test_its_size_is_known_before(size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encryption, "CHUNK", CHUNK)
        assert sealed_size(size, "now") == len(sealed(bytes(size)))


def test_a_chunk_is_a_mebibyte() -> None:
    stored = b"".join(seal(io.BytesIO(bytes(3 * 1024**2)), NAME, KEYS, "now"))
    assert len(stored) == sealed_size(3 * 1024**2, "now") == HEADER + 3 * (1024**2 + TAG)


@given(contents)
def test_the_same_content_never_looks_the_same(content: bytes) -> None:
    assert sealed(content)[HEADER:] != sealed(content)[HEADER:]


@given(contents, st.data())
def test_no_bit_can_be_changed(content: bytes, data: st.DataObject) -> None:
    stored = bytearray(sealed(content))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(stored), content)


@given(contents, st.data())
def test_nothing_can_be_cut_off(content: bytes, data: st.DataObject) -> None:
    stored = sealed(content)
    refused(stored[: data.draw(st.integers(0, len(stored) - 1))], content)


@given(long_contents, st.integers(1, 4))
def test_nothing_can_be_cut_off_at_the_end_of_a_chunk(content: bytes, chunks: int) -> None:
    stored = sealed(content)
    refused(stored[: min(HEADER + chunks * (CHUNK + TAG), len(stored) - TAG - 1)], content)


@given(contents, st.binary(min_size=1, max_size=100))
def test_nothing_can_be_added(content: bytes, more: bytes) -> None:
    refused(sealed(content) + more, content)


@given(st.permutations(range(4)).filter(lambda order: order != [0, 1, 2, 3]))
def test_chunks_cannot_be_swapped(order: list[int]) -> None:
    content = bytes(range(4 * CHUNK))
    stored = sealed(content)
    step = CHUNK + TAG
    chunks = [stored[HEADER + number * step : HEADER + (number + 1) * step] for number in range(4)]
    refused(stored[:HEADER] + b"".join(chunks[number] for number in order), content)


def test_a_chunk_cannot_be_taken_from_another_file() -> None:
    one, other = sealed(bytes(2 * CHUNK)), sealed(bytes(2 * CHUNK))
    refused(one[: -CHUNK - TAG] + other[-CHUNK - TAG :], bytes(2 * CHUNK))


def test_a_file_cannot_take_the_place_of_another() -> None:
    refused(sealed(b"content"), b"", name="cd" * 32)


def test_a_file_under_another_key_than_was_said_is_refused() -> None:
    refused(sealed(b"content", key="then"), b"")


def test_without_its_key_a_file_stays_closed() -> None:
    with pytest.raises(KeyUnavailableError, match="'now'"):
        unsealed(sealed(b"content"), keys=Keyring.of(SecretStr(json.dumps({"then": new_key()}))))


def test_a_file_can_be_read_without_pecia_as_the_docs_say() -> None:
    content = bytes(range(CHUNK + 1))
    stored = sealed(content)
    header, body = stored[:HEADER], stored[HEADER:]
    derived = HKDF(SHA256(), length=32, salt=header[-16:], info=b"pecia file").derive(base64.b64decode(KEY))
    cipher, bound_to = AESGCM(derived), header + NAME.encode()

    first = cipher.decrypt(bytes(12), body[: CHUNK + TAG], bound_to)
    last = cipher.decrypt((1).to_bytes(11) + b"\x01", body[CHUNK + TAG :], bound_to)

    assert header[:-16] == b"PECIA\x01\x03now"
    assert first + last == content
