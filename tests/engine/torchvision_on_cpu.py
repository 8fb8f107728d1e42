"""Lets torchvision's CUDA build be imported beside a torch for the CPU; `install.sh` has every interpreter load it.

That build's operators cannot be loaded without CUDA, and its import ends where it looks for two of them. What vLLM and
transformers use, `transforms.v2`, is plain Python: to declare the two operators, without code, is enough.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []


class _TorchvisionFinder(MetaPathFinder):
    """Declares the operators just before torchvision runs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def declare_and_execute(module: ModuleType) -> None:
            _declare()
            execute(module)

        spec.loader.exec_module = declare_and_execute  # type: ignore[method-assign]
        return spec


def _declare() -> None:
    import torch  # noqa: PLC0415  every interpreter loads this module, few need torch

    if torch.version.cuda is None and not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)  # the declarations last as long as it does


sys.meta_path.insert(0, _TorchvisionFinder())
