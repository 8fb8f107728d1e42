"""The command that adds an extra to this installation of Pecia."""

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extras: str) -> str:
    """Return the shell command that adds extras to this installation, from its original clone or wheel.

    Pecia is on no package index. ./pecia stands for an unknown or missing origin.
    """
    try:
        origin = json.loads(distribution("pecia").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a path
        origin = {}
    url = origin.get("url", "")
    path = Path(unquote(urlsplit(url).path))
    if url and not url.startswith("file:"):
        vcs = origin.get("vcs_info", {}).get("vcs")
        target = f"pecia[{extras}] @ {f'{vcs}+' if vcs else ''}{url}"
    else:
        target = f"{path if url and path.exists() else './pecia'}[{extras}]"
    editable = "--editable " if origin.get("dir_info", {}).get("editable") and path.exists() else ""
    beside = shutil.which("pip", path=str(Path(sys.executable).parent))
    pip = "pip" if beside and beside == shutil.which("pip") else f"{shlex.quote(sys.executable)} -m pip"
    return f"{pip} install {editable}{shlex.quote(target)}"
