"""Where Tesseract's language data is found, and what is said where it is not."""

from pathlib import Path

import pytest

from pecia_schemas.running import Lack
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import registry
from pecia_workers.engines.registry import create_engine, find_tessdata


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose own data lies in `system`, if anywhere."""
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    monkeypatch.setattr(registry, "_SYSTEM", (str(tmp_path / "system" / "*" / "tessdata"),))


def with_data(directory: Path, *languages: str) -> Path:
    directory.mkdir(parents=True)
    for language in languages or ("kor", "eng"):
        (directory / f"{language}.traineddata").write_bytes(b"data")
    return directory


def test_the_data_of_the_newest_tesseract_of_the_system_is_found(tmp_path: Path) -> None:
    with_data(tmp_path / "system" / "4.00" / "tessdata")
    newest = with_data(tmp_path / "system" / "5" / "tessdata")
    assert find_tessdata() == newest


@pytest.mark.parametrize("below", [".", "tessdata"])
def test_the_environment_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    with_data(tmp_path / "system" / "5" / "tessdata")
    own = with_data(tmp_path / "own" / below)
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path / "own"))
    assert find_tessdata() == own


def test_a_directory_that_is_set_is_the_only_one_that_counts(tmp_path: Path) -> None:
    with_data(tmp_path / "system" / "5" / "tessdata")
    assert find_tessdata(str(with_data(tmp_path / "set"))) == tmp_path / "set"
    assert find_tessdata(str(with_data(tmp_path / "half", "kor"))) is None


def test_an_engine_that_lacks_korean_does_not_say_that_it_reads_it_but_what_it_takes() -> None:
    pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")
    able = create_engine(WorkerSettings()).capabilities
    assert able.languages == frozenset({"en", "zh"})
    assert "pip install 'pecia[korean]'" in able.remedies["ko"]


def test_an_engine_with_korean_says_so_and_its_results_are_told_apart_by_its_data(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")
    pytest.importorskip("tesserocr", reason="pecia[korean] brings tesserocr")
    data = with_data(tmp_path / "set")
    settings = WorkerSettings(tessdata=str(data))

    before = create_engine(settings).capabilities
    (data / "kor.traineddata").write_bytes(b"other data")
    after = create_engine(settings).capabilities

    assert before.languages == frozenset({"en", "ko", "zh"})
    assert before.remedies == {}
    assert before.revision != after.revision


def test_a_job_that_waits_for_a_reader_of_korean_is_told_what_it_takes() -> None:
    lack = Lack(job_id=None, stage="read", need="language", value="ko", parts=1)
    assert "pecia[korean] and tesseract-ocr-kor" in lack.sentence
