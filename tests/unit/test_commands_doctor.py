"""What `pecia doctor` prints for people."""

import pytest

from pecia_workers.commands import doctor


def test_a_path_that_is_longer_than_a_line_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/opt" + "/a-long-name" * 20
    doctor._show([doctor.Finding(subject="decoders", ok=True, detail=f"readable: {path}")], as_json=False)
    assert path in "".join(capsys.readouterr().out.split())
