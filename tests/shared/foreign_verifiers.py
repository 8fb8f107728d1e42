"""Libraries of npm that receivers verify callbacks with."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from limits import WAIT_S
from npm_files import installed, tools

LIBRARIES: Final = ("standardwebhooks", "svix")

_HERE: Final = Path(__file__).with_name("verifiers")


def verified(library: str, secret: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return what a request holds that the library verifies, or `{"refused": why}`. Raises `NothingThereError`."""
    node, _ = tools()
    request = json.dumps({"secret": secret, "headers": dict(headers), "body": body.decode()})
    command = [node, "verify.cjs", library]
    ran = subprocess.run(
        command, cwd=installed(_HERE), input=request.encode(), capture_output=True, check=True, timeout=WAIT_S
    )
    said: dict[str, Any] = json.loads(ran.stdout)
    return said
