"""Where a local fleet lives, what its children are told, and the documents that it is tried with."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from PIL import Image
from pydantic import SecretStr

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.local.home import Flower, Home, ScratchDirectory, default_home, environment
from pecia_workers.local.process import EmbeddedError
from pecia_workers.media.samples import accuracy, sample_document
from tests.shared.command import run_pecia


@pytest.mark.parametrize(("account", "home"), [(0, "/var/lib/pecia"), (1000, "/data/pecia")])
def test_root_and_users_have_their_places(monkeypatch: pytest.MonkeyPatch, account: int, home: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: account)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path(home)


def test_a_directory_with_other_things_in_it_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    tmp_path.chmod(0o750)
    with Home(path=tmp_path).hold():
        assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "home"):
        with (
            pytest.raises(EmbeddedError, match=rf"{path} \(.*choose another directory"),
            Home(path=path).hold(),
        ):
            pass


@pytest.fixture(params=["", "deep/" * 20, "two words"], ids=["short", "deep", "not plain"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    home = tmp_path / "home" / request.param
    home.mkdir(parents=True)
    return Home(path=home)


def test_sockets_lie_in_the_same_place_at_every_start_and_nothing_of_them_stays(home: Home) -> None:
    places = set()
    for _ in range(2):
        with home.socket_directory("postgres") as directory, home.socket_directory("redis"):
            assert len(str(directory / ".s.PGSQL.5432")) <= 107
            assert " " not in str(directory)
            assert directory.stat().st_mode & 0o777 == 0o700
            places.add(directory)
            with socket.socket(socket.AF_UNIX) as listener:  # a killed server leaves it
                listener.bind(str(directory / ".s.PGSQL.5432"))
        assert directory.exists()
        (directory / ".s.PGSQL.5432").unlink()
    assert len(places) == 1
    with home.socket_directory("postgres"):
        pass
    assert not home.sockets.exists()


def _plant_link(sockets: Path, elsewhere: Path) -> None:
    sockets.symlink_to(elsewhere)


def _plant_open_directory(sockets: Path, _: Path) -> None:
    sockets.mkdir()
    sockets.chmod(0o777)


def _plant_directory_of_another(sockets: Path, _: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    sockets.mkdir(mode=0o700)
    os.chown(sockets, 65534, 65534)


@pytest.mark.parametrize("plant", [_plant_link, _plant_open_directory, _plant_directory_of_another])
def test_sockets_are_not_put_where_another_account_could_have_planted_something(
    tmp_path: Path, home: Home, plant: Callable[[Path, Path], None]
) -> None:
    plant(home.sockets, tmp_path)
    try:
        with (
            pytest.raises(EmbeddedError, match=f"{home.sockets} is not a directory.*remove it"),
            home.socket_directory("postgres"),
        ):
            pass
    finally:
        home.sockets.unlink() if home.sockets.is_symlink() else home.sockets.rmdir()


def test_children_get_every_setting_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorkerSettings(
        redis_url=SecretStr("unix:///r?db=0"),
        lease=timedelta(seconds=7.5),
        webhook_allow=("10.0.0.0/8",),
        payload_options={"region": "eu"},
        max_in_flight=3,
    )
    variables = environment(settings)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert WorkerSettings() == settings
    assert "PECIA_MAX_PAGES" not in variables


def test_flower_takes_another_port_when_its_own_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = WorkerSettings(flower_port=port)
        other = Flower(given, tmp_path).port
        assert other != port
    assert Flower(given, tmp_path).port == other, "the same after a restart"
    with socket.create_server(("127.0.0.1", other)):
        assert Flower(given, tmp_path).port == port


def test_flower_keeps_its_password_where_only_its_user_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "flower.password"
    first, second = (Flower(WorkerSettings(), tmp_path) for _ in range(2))
    assert first.password == second.password
    assert file.stat().st_mode & 0o777 == 0o600
    assert first.password not in " ".join(first.command)


def test_a_password_of_the_settings_is_flowers_and_is_not_kept(tmp_path: Path) -> None:
    settings = WorkerSettings(flower_user="nurse", flower_password=SecretStr("given"))
    flower = Flower(settings, tmp_path)
    assert (flower.user, flower.password) == ("nurse", "given")
    assert flower.login == "user nurse, password as in PECIA_FLOWER_PASSWORD"
    assert not (tmp_path / "flower.password").exists()


@pytest.mark.parametrize(
    ("address", "prefix", "url"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:{}"),
        ("0.0.0.0", "/flower/", "http://127.0.0.1:{}/flower"),  # noqa: S104
        ("::1", "", "http://[::1]:{}"),
    ],
)
def test_flower_is_found_where_it_is_served(tmp_path: Path, address: str, prefix: str, url: str) -> None:
    settings = WorkerSettings(flower_address=address, flower_url_prefix=prefix)
    flower = Flower(settings, tmp_path)
    assert flower.url == url.format(flower.port)


def test_the_same_seed_draws_the_same_pixels_and_another_seed_other_text() -> None:
    first, again, other = (sample_document(DocumentType.LAB_RESULT, seed) for seed in (1, 1, 2))
    assert first.pages[0].image.tobytes() == again.pages[0].image.tobytes()
    assert first.text == again.text != other.text


@pytest.mark.parametrize(
    ("read", "known", "expected"),
    [("ab c\nd", "a bcd", 1.0), ("abxd", "abcd", 0.75), ("", "abcd", 0.0), ("", "", 1.0), ("x", "", 0.0)],
)
def test_accuracy_counts_wrong_characters_and_no_white_space(read: str, known: str, expected: float) -> None:
    assert accuracy(read, known) == expected


def test_sample_draws_the_documents_of_the_demo_beside_what_is_there_and_prints_where(tmp_path: Path) -> None:
    papers = tmp_path / "new" / "papers"
    assert run_pecia("sample", papers).returncode == 0
    (papers / "lab.png").write_text("mine")
    (papers / "chart.pdf").unlink()
    done = run_pecia("sample", papers)
    refused = run_pecia("sample", papers / "lab.png" / "papers")

    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(written) == sorted(papers.iterdir())
    assert {path.suffix for path in written} == {".pdf", ".png", ".jpg"}
    assert (papers / "lab.png").read_text() == "mine"
    assert (papers / "chart.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(papers / "prescription.png") as picture:
        picture.load()
    assert (refused.returncode, "lab.png/papers cannot be written" in refused.stderr) == (2, True)


def test_a_throw_away_fleet_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> ScratchDirectory:
        raise EmbeddedError("set TMPDIR to one")

    monkeypatch.setattr(ScratchDirectory, "create", none)
    ran = run_pecia("demo")
    assert (ran.returncode, "set TMPDIR" in ran.stderr) == (4, True)


def test_the_demo_of_vllm_says_where_its_model_is_if_it_is_not_here(tmp_path: Path) -> None:
    ran = run_pecia("demo", "--engine", "vllm", env={"PECIA_MODEL": str(tmp_path)})
    assert (ran.returncode, "tests/engine/reader of a clone" in " ".join(ran.stderr.split())) == (2, True)
