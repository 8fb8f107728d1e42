"""The types of fixtures that many tests take: most return what makes something."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

Draw = Callable[..., bytes]
"""`drawn`: a page with this text."""
MakeFile = Callable[[bytes], Path]
"""`file`: a file that holds this."""
Picture = Callable[..., bytes]
"""`picture`: a picture without any text."""
RunFleet = Callable[..., AbstractContextManager[Any]]
"""`run_fleet`: a fleet with settings of its own."""
Make = Callable[..., Any]
"""Any other that makes, starts or runs something."""
