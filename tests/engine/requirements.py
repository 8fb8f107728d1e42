"""`python requirements.py WHEEL`: what a wheel needs, without the packages of PyTorch."""

import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

_LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})


def requirements(wheel: Path) -> list[str]:
    """Return the wheel's own requirements, as pip writes them; none of its extras."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(opened.read(name).decode())
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] not in _LEFT_OUT]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]))) + "\n")
