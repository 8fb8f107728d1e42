"""What is sealed under a key can be read with it and in its place alone, whole, and no error tells of it."""

import base64
import hashlib
import hmac
import io
import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pecia_schemas import encryption
from pecia_schemas.encryption import (
    Keyring,
    KeyUnavailableError,
    SealBrokenError,
    Unsealer,
    new_key,
    seal,
    seal_task,
    sealed_size,
    task_digest,
    unseal_task,
)
from pecia_schemas.settings import ClientSettings, SettingsError, WorkerSettings, read_settings

PLANTED = "Quillfeather"
OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
PART = UUID("018f0000-0000-7000-8000-000000000001")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def ring(**keys: str) -> Keyring:
    return Keyring.of(SecretStr(json.dumps(keys)))


BOTH = ring(new=NEW, old=OLD)


def sealed(value: Any, keys: Keyring = BOTH, about: UUID = PART) -> Any:
    return json.loads(keys.seal(json.dumps(value), about))


def test_a_seal_shows_its_key_alone_never_looks_the_same_and_is_opened_by_former_keys_too() -> None:
    text = {"text": PLANTED * 3}
    envelope = sealed(text)
    assert (envelope.keys(), envelope["enc"]) == ({"enc", "data"}, "new")
    assert PLANTED.encode() not in base64.b64decode(envelope["data"])
    assert envelope != sealed(text)
    assert BOTH.unseal(sealed(text, ring(old=OLD)), PART) == text
    assert sealed(text, Keyring()) == Keyring().unseal(text, PART) == text


@pytest.mark.parametrize(
    "stored", [{"text": PLANTED}, {"enc": "new", "data": "", "text": PLANTED}, {"enc": 1, "data": ""}]
)
def test_what_was_stored_without_keys_can_be_read(stored: dict[str, Any]) -> None:
    assert BOTH.unseal(stored, PART) == stored


@pytest.mark.parametrize(
    ("keys", "part", "error", "said"),
    [
        (ring(old=OLD), PART, KeyUnavailableError, "'new', which PECIA_ENCRYPTION_KEYS lacks here"),
        (ring(new=OLD), PART, SealBrokenError, "'new'"),
        (BOTH, uuid4(), SealBrokenError, None),
    ],
    ids=["a key that is missing is named", "another key of the same name", "in another part's place"],
)
def test_a_seal_is_opened_by_its_key_in_its_place_alone(
    keys: Keyring, part: UUID, error: type[Exception], said: str | None
) -> None:
    with pytest.raises(error, match=said):
        keys.unseal(sealed({"text": PLANTED}), part)


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    envelope = sealed({"text": PLANTED})
    content = bytearray(base64.b64decode(envelope["data"]))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SealBrokenError) as caught:
        BOTH.unseal({**envelope, "data": base64.b64encode(content).decode()}, PART)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("content", ["", "QQ==", "no base64", None, 5, ["a"]])
def test_a_seal_around_nothing_is_broken(content: Any) -> None:
    with pytest.raises(SealBrokenError):
        BOTH.unseal({"enc": "new", "data": content}, PART)


def test_no_two_rows_and_no_two_purposes_share_a_key() -> None:
    derived = {BOTH.derive(key, info) for key in ("new", "old") for info in (b"row a", b"row b", b"file")}
    assert len(derived) == 6
    assert all(base64.b64encode(key).decode() not in (NEW, OLD) for key in derived)


@given(JSON, st.sampled_from([OLD, NEW]))
def test_a_job_is_read_under_any_key_that_wraps_its_own_and_copies_of_it_under_none_of_the_fleets(
    value: Any, first: str
) -> None:
    job = uuid4()
    own, wrapped = ring(old=first).for_new_job(job)
    stored = sealed(value, own)
    anew = json.loads(ring(new=NEW, old=first).rewrapped(wrapped, f"{job} key"))
    assert (stored["enc"], wrapped["enc"], anew["enc"]) == ("@job", "old", "new")
    assert ring(old=first).of_job(job, wrapped).unseal(stored, PART) == value
    assert ring(new=NEW).of_job(job, anew).unseal(stored, PART) == value
    assert PLANTED not in json.dumps([stored, wrapped])
    for keys in (ring(new=NEW, old=first), ring(old=first).for_new_job(job)[0]):
        with pytest.raises((KeyUnavailableError, SealBrokenError)):
            keys.unseal(stored, PART)


@given(st.data())
def test_a_data_key_is_of_one_job_and_no_bit_of_it_can_be_changed(data: st.DataObject) -> None:
    _, wrapped = BOTH.for_new_job(PART)
    with pytest.raises(SealBrokenError):
        BOTH.of_job(uuid4(), wrapped)
    content = bytearray(base64.b64decode(wrapped["data"]))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SealBrokenError):
        BOTH.of_job(PART, {**wrapped, "data": base64.b64encode(content).decode()})
    with pytest.raises(SealBrokenError):
        BOTH.of_job(PART, sealed("no key"))


def test_a_job_without_a_data_key_has_the_keys_of_the_fleet_and_gets_one_beside_them() -> None:
    before = sealed("before")
    assert BOTH.of_job(PART, None) == BOTH
    adopted = ring(newer=new_key()).of_job(PART, None)
    assert adopted.current == "newer"
    newer = json.dumps({"newer": OLD})
    wrapped = Keyring.of(SecretStr(newer[:-1] + f', "new": "{NEW}"}}')).for_earlier_job(PART)
    later = Keyring.of(SecretStr(newer)).of_job(PART, wrapped)
    assert (later.current, later.unseal(before, PART)) == ("@job", "before")


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_document_has_the_same_key_and_name_for_every_job_and_no_other_document_has_them(
    one: bytes, other: bytes
) -> None:
    def named(content: bytes, keys: Keyring = BOTH) -> tuple[str, str]:
        sha256 = hashlib.sha256(content).hexdigest()
        own = keys.of_document(sha256, "new")
        assert Keyring.of_secret("new", own.secret("new")) == own
        return own.name_of(sha256, "new"), own.secret("new")

    assert (named(one) == named(other)) is (one == other)
    assert not set(named(one)) & set(named(one, ring(new=OLD)))


def test_the_key_of_a_document_is_sealed_in_its_job() -> None:
    task = {"source": {"sha256": "ab", "key": "new", "secret": NEW}}
    stored = seal_task(task, PART, BOTH)
    assert NEW not in json.dumps(stored)
    assert unseal_task(stored, PART, BOTH) == task
    with pytest.raises(SealBrokenError):
        unseal_task(stored, uuid4(), BOTH)


def derived_by_hand(info: bytes, key: str = NEW) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(base64.b64decode(key))


def test_rows_and_names_can_be_found_without_pecia_as_the_docs_say() -> None:
    content = base64.b64decode(sealed({"text": PLANTED})["data"])
    cipher = AESGCM(derived_by_hand(f"pecia row {PART}".encode()))
    assert json.loads(cipher.decrypt(content[:12], content[12:], str(PART).encode())) == {"text": PLANTED}
    sha256 = hashlib.sha256(PLANTED.encode())
    expected = hmac.digest(derived_by_hand(b"pecia fingerprint name"), sha256.digest(), "sha256").hex()
    assert BOTH.name_of(sha256.hexdigest(), "new") == expected
    own = BOTH.of_document(sha256.hexdigest(), "new").secret("new")
    assert base64.b64decode(own) == derived_by_hand(b"pecia document " + sha256.digest())


def test_neither_a_documents_name_nor_a_tasks_digest_is_told_by_what_it_is_made_of() -> None:
    sha256 = hashlib.sha256(PLANTED.encode()).hexdigest()
    names = [BOTH.name_of(sha256, key) for key in BOTH]
    assert (names[-1], len(set(names))) == (sha256, 3)
    assert names == [BOTH.name_of(sha256, key) for key in BOTH]
    assert len({task_digest("document.read", {"fields": {}}, "normal", BOTH, key) for key in BOTH}) == 3


def test_of_a_task_only_what_may_tell_of_the_document_is_sealed() -> None:
    schema = {"type": "object", "title": PLANTED}
    task = {"language": "en", "fields": schema, "instructions": PLANTED, "source": {"sha256": "ab"}}
    stored = seal_task(task, PART, BOTH)
    assert PLANTED not in json.dumps(stored)
    assert stored["fields"].keys() == {"enc", "data"}
    sealed = {"fields": None, "instructions": None}
    assert {**stored, **sealed} == {**task, **sealed}
    assert unseal_task(stored, PART, BOTH) == task
    for bare in ({}, {"fields": None}):
        assert seal_task(bare, PART, BOTH) == unseal_task(bare, PART, BOTH) == bare


def test_client_and_fleet_read_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_ENCRYPTION_KEYS", json.dumps({"new": NEW, "old": OLD}))
    for read in (read_settings(ClientSettings), read_settings(WorkerSettings)):
        assert (read.keyring, read.keyring.current) == (BOTH, "new")
        assert NEW not in repr(read)
        assert NEW not in repr(read.keyring)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (PLANTED, "contains no keys"),
        ("[]", "contains no keys"),
        ("{}", "contains no keys"),
        (f'{{"a": "{PLANTED}"}}', "contains an invalid key"),
        (json.dumps({"a": base64.b64encode(b"too short").decode()}), "contains an invalid key"),
        (json.dumps({"a": {}}), "contains an invalid key"),
        (json.dumps({"a key": NEW}), "must name keys by 1 to 64 letters"),
        (f'{{"a": "{NEW}", "a": "{OLD}"}}', "names a key twice"),
    ],
)
def test_keys_that_cannot_be_meant_are_refused_without_showing_them(
    monkeypatch: pytest.MonkeyPatch, setting: str, why: str
) -> None:
    monkeypatch.setenv("PECIA_ENCRYPTION_KEYS", setting)
    with pytest.raises(SettingsError, match=f"PECIA_ENCRYPTION_KEYS {why}") as caught:
        read_settings(ClientSettings)
    assert not any(secret in str(caught.value) for secret in (PLANTED, NEW, OLD))


KEY = new_key()
KEYS = ring(now=KEY, then=new_key())
NAME = "ab" * 32
CHUNK, TAG = 16, 16
HEADER = len(b"PECIA\x01\x03now") + 16
contents = st.binary(max_size=5 * CHUNK)


def sealed_file(content: bytes, name: str = NAME, key: str = "now") -> bytes:
    return b"".join(seal(io.BytesIO(content), name, KEYS, key, chunk=CHUNK))


def unsealed_file(stored: bytes, *, name: str = NAME, keys: Keyring = KEYS, piece: int = 7) -> bytes:
    unsealer = Unsealer(name, keys, "now", chunk=CHUNK)
    pieces = [stored[start : start + piece] for start in range(0, len(stored), piece)]
    return b"".join([*map(unsealer.feed, pieces), unsealer.end()])


def refused(stored: bytes, content: bytes, name: str = NAME) -> None:
    """Nothing but what was sealed comes out, and the end says that it was not the whole of it."""
    unsealer, out = Unsealer(name, KEYS, "now", chunk=CHUNK), b""
    with pytest.raises(ValueError, match=r"^$"):  # noqa: PT012  what came out before is looked at
        for start in range(0, len(stored), 7):
            out += unsealer.feed(stored[start : start + 7])
        unsealer.end()
    assert content.startswith(out)


@given(contents, st.integers(1, 100))
def test_what_is_sealed_comes_back_in_pieces_of_any_size(content: bytes, piece: int) -> None:
    assert unsealed_file(sealed_file(content), piece=piece) == content
    assert sealed_file(content)[HEADER:] != sealed_file(content)[HEADER:], "the same never looks the same"


@given(st.integers(0, 5 * CHUNK))
def test_the_size_of_a_sealed_file_is_known_before_it_is_sealed(size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encryption, "CHUNK", CHUNK)
        assert sealed_size(size, "now") == len(sealed_file(bytes(size)))


def test_a_chunk_is_a_mebibyte() -> None:
    stored = b"".join(seal(io.BytesIO(bytes(3 * 1024**2)), NAME, KEYS, "now"))
    assert len(stored) == sealed_size(3 * 1024**2, "now") == HEADER + 3 * (1024**2 + TAG)


@given(contents, st.data())
def test_no_bit_of_a_file_can_be_changed(content: bytes, data: st.DataObject) -> None:
    stored = bytearray(sealed_file(content))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(stored), content)


@given(contents | st.binary(min_size=2 * CHUNK, max_size=5 * CHUNK), st.data())
def test_nothing_can_be_cut_off_anywhere_or_after_a_chunk(content: bytes, data: st.DataObject) -> None:
    stored = sealed_file(content)
    anywhere = data.draw(st.integers(0, len(stored) - 1))
    for end in (anywhere, *range(HEADER + CHUNK + TAG, len(stored), CHUNK + TAG)):
        refused(stored[:end], content)


@given(contents, st.binary(min_size=1, max_size=100))
def test_nothing_can_be_added_to_a_file(content: bytes, more: bytes) -> None:
    refused(sealed_file(content) + more, content)


@given(st.permutations(range(4)).filter(lambda order: order != [0, 1, 2, 3]))
def test_chunks_cannot_be_swapped(order: list[int]) -> None:
    content = bytes(range(4 * CHUNK))
    stored = sealed_file(content)
    step = CHUNK + TAG
    chunks = [stored[HEADER + number * step : HEADER + (number + 1) * step] for number in range(4)]
    refused(stored[:HEADER] + b"".join(chunks[number] for number in order), content)


def test_neither_a_chunk_nor_a_file_can_take_the_place_of_another_or_bear_another_key() -> None:
    one, other = sealed_file(bytes(2 * CHUNK)), sealed_file(bytes(2 * CHUNK))
    refused(one[: -CHUNK - TAG] + other[-CHUNK - TAG :], bytes(2 * CHUNK))
    refused(sealed_file(b"content"), b"", name="cd" * 32)
    refused(sealed_file(b"content", key="then"), b"")


def test_without_its_key_a_file_stays_closed() -> None:
    with pytest.raises(KeyUnavailableError, match="'now'"):
        unsealed_file(sealed_file(b"content"), keys=ring(then=new_key()))


def test_a_file_can_be_read_without_pecia_as_the_docs_say() -> None:
    content = bytes(range(CHUNK + 1))
    stored = sealed_file(content)
    header, body = stored[:HEADER], stored[HEADER:]
    derived = HKDF(SHA256(), length=32, salt=header[-16:], info=b"pecia file").derive(base64.b64decode(KEY))
    cipher, bound_to = AESGCM(derived), header + NAME.encode()

    first = cipher.decrypt(bytes(12), body[: CHUNK + TAG], bound_to)
    last = cipher.decrypt((1).to_bytes(11) + b"\x01", body[CHUNK + TAG :], bound_to)

    assert header[:-16] == b"PECIA\x01\x03now"
    assert first + last == content
