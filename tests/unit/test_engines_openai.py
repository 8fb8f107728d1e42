"""The engine that asks a server, before it asks one."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.openai.engine import check_adapters, chosen
from pecia_workers.engines.openai.server import Retries, ServedModel, ServerAddress
from pecia_workers.engines.registry import create_engine
from pecia_workers.protocol.base import EngineUnavailableError

ONE = [ServedModel(id="qwen", root="/models/qwen"), ServedModel(id="loud", parent="qwen")]
TWO = [*ONE, ServedModel(id="gemma")]


def address(url: str, key: str = "") -> ServerAddress:
    return ServerAddress.of(WorkerSettings(engine_url=url, engine_api_key=SecretStr(key)))


@pytest.mark.parametrize(
    ("given_url", "api", "root"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000/v1", "http://gpu-1:8000"),
        ("http://gpu-1:8000/v1/", "http://gpu-1:8000/v1", "http://gpu-1:8000"),
        ("https://gate/models/v1", "https://gate/models/v1", "https://gate/models"),
        ("https://gate/api", "https://gate/api", "https://gate/api"),
    ],
)
def test_an_address_is_taken_with_or_without_its_version(given_url: str, api: str, root: str) -> None:
    assert (address(given_url).api, address(given_url).root) == (api, root)


@pytest.mark.parametrize(
    "url",
    ["gpu-1:8000", "ftp://gpu-1", "http://", "http://gpu\n1", "http://user:pw@gpu-1", "http://gpu-1/?key=pw"],
)
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(EngineUnavailableError, match="PECIA_ENGINE_URL") as refused:
        address(url)
    assert "pw" not in str(refused.value)
    with pytest.raises(EngineUnavailableError, match="set PECIA_ENGINE_URL"):
        create_engine(WorkerSettings(engine="openai"))


def test_the_key_is_in_its_header_and_in_nothing_that_is_printed_even_if_no_header_can_carry_it() -> None:
    told = address("http://gpu-1", "sesame ")
    assert told.headers == {"Authorization": "Bearer sesame"}
    assert "sesame" not in repr(told)
    with pytest.raises(EngineUnavailableError, match="PECIA_ENGINE_API_KEY") as refused:
        address("http://gpu-1", "ses\name")
    assert "name" not in str(refused.value)


def test_the_only_model_goes_by_any_of_its_names_others_and_adapters_by_their_own(tmp_path: Path) -> None:
    for wanted in ("", "qwen", "/models/qwen", str(tmp_path)):
        assert chosen(ONE, wanted).id == "qwen"
    assert chosen(TWO, "gemma").id == "gemma"
    for wanted in ("", str(tmp_path), "llama"):
        with pytest.raises(EngineUnavailableError, match=r"PECIA_MODEL to one of .*: qwen, gemma"):
            chosen(TWO, wanted)
    check_adapters(ONE, {"loud"})
    with pytest.raises(EngineUnavailableError, match="no adapter quiet"):
        check_adapters(ONE, {"loud", "quiet"})


@given(failed=st.integers(0, 10_000), asked=st.none() | st.timedeltas(timedelta(days=-9), timedelta(days=99)))
def test_a_wait_is_at_least_what_was_asked_for_and_bounded(failed: int, asked: timedelta | None) -> None:
    retries = Retries()
    wait = retries.wait_s(failed, asked)
    assert retries.backoff.first_s <= wait <= 1.25 * retries.backoff.longest_s
    if asked is not None:
        assert wait >= min(asked.total_seconds(), retries.backoff.longest_s)
