"""Which distributions are installed, and in which versions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

LIBRARIES: Final = (
    "megacompile",
    "torch",
    "torchao",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "nncf",
    "executorch",
    "numpy",
    "tensorrt-rtx-cu13-bindings",
    "tensorrt",
)


def installed(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Installed versions by distribution name; those not installed are left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def missing(names: Iterable[str]) -> list[str]:
    """The distributions that are not installed, in the order they were asked for."""
    wanted = list(names)
    found = installed(wanted)
    return [name for name in wanted if name not in found]
