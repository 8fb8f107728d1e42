"""Hints at an extra name the clone or the wheel that Pecia was installed from: it is on no package index."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pecia_schemas.installing import install_command

ROOT = Path(__file__).parents[2]
NO_PATH = re.compile(r"pip install [\"']?pecia\b(?![^\n]* @ )")


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        ({"url": "file://CLONE", "dir_info": {"editable": True}}, ["--editable", "CLONE[vllm]"]),
        ({"url": "file://CLONE", "dir_info": {}}, ["CLONE[vllm]"]),
        (
            {"url": "file://CLONE/pecia-0.1.0-py3-none-any.whl", "archive_info": {}},
            ["CLONE/pecia-0.1.0-py3-none-any.whl[vllm]"],
        ),
        ({"url": "file:///gone/pecia", "dir_info": {"editable": True}}, ["./pecia[vllm]"]),
        (
            {"url": "https://git.example/pecia", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            ["pecia[vllm] @ git+https://git.example/pecia"],
        ),
        (None, ["./pecia[vllm]"]),
    ],
)
def test_an_extra_comes_from_where_pecia_came_from(
    origin: dict[str, object] | None, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (metadata := tmp_path / "pecia-0.1.0.dist-info").mkdir()
    (clone := tmp_path / "a clone").mkdir()
    (clone / "pecia-0.1.0-py3-none-any.whl").touch()
    if origin:
        recorded = json.dumps(origin).replace("CLONE", str(clone).replace(" ", "%20"))
        (metadata / "direct_url.json").write_text(recorded)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    pip, command = install_command("vllm").split(" install ")
    assert pip in {"pip", f"{sys.executable} -m pip"}
    assert shlex.split(command) == [word.replace("CLONE", str(clone)) for word in arguments]


def test_no_file_has_pip_look_for_pecia_on_an_index() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {name: ROOT / name for name in tracked.stdout.split("\0") if (ROOT / name).is_file()}
    hints = [name for name, path in texts.items() if NO_PATH.search(path.read_text(errors="replace"))]
    assert hints == []
