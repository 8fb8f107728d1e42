"""The doctor says which PDFs draw blank for want of a font."""

import shutil
import subprocess
import sys

import pytest

from pecia_workers.commands import doctor
from pecia_workers.confinement import Guard, missing_guards
from pecia_workers.media.glyphs import scripts_without_a_font

_WITHOUT_FONTS = """
from pecia_workers import confinement
from pecia_workers.media.glyphs import scripts_without_a_font
confinement._READABLE = tuple(place for place in confinement._READABLE if "fonts" not in place)
assert confinement.confine_files()
print(*scripts_without_a_font())
"""


def _installed(language: str) -> bool:
    lister = shutil.which("fc-list")
    return bool(
        lister and subprocess.run([lister, f":lang={language}"], check=True, capture_output=True).stdout
    )


@pytest.mark.skipif(Guard.LANDLOCK in missing_guards(), reason="the kernel hides no files")
def test_all_scripts_are_without_a_font_where_there_are_no_fonts() -> None:
    found = subprocess.run([sys.executable, "-c", _WITHOUT_FONTS], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["Chinese", "Japanese", "Korean"]


@pytest.mark.skipif(not _installed("ko"), reason="no Korean font is installed")
def test_a_script_whose_font_is_installed_is_not_named() -> None:
    assert "Korean" not in scripts_without_a_font()


def test_the_doctor_names_the_scripts_that_draw_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "scripts_without_a_font", lambda: ("Chinese", "Japanese"))
    assert "none for Chinese or Japanese" in doctor._look_at_fonts().detail
