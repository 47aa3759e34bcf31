"""Which TensorRT is installed, and how to load it: TensorRT-RTX or TensorRT, one Python API.

TensorRT-RTX builds engines for named architectures on a machine without GPU and driver; TensorRT
builds for the GPU it runs on. The libraries of TensorRT-RTX come from its own package
(`tensorrt-rtx-cu13-libs`) or from ONNX Runtime's plugin wheel; the bindings' version must match.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from megacompile.errors import BackendError
from megacompile.system import installed

Name = Literal["tensorrt-rtx", "tensorrt"]

PLUGIN_PACKAGE = "onnxruntime_ep_nv_tensorrt_rtx"
# The plugin wheel has no loader of its own for these, and each needs the one before it.
PLUGIN_LIBRARIES = ("libcudart.so.*", "libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*")


@dataclass(frozen=True)
class Flavour:
    """One of the two products.

    `modules` are the names its Python API is found under, `archs` the compute capabilities it
    has kernels for (None: ask the GPU it runs on), `cross_builds` whether it needs no GPU.
    """

    name: Name
    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    library: str
    archs: tuple[str, ...] | None
    cross_builds: bool
    install: str


RTX = Flavour(
    "tensorrt-rtx",
    ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
    "libtensorrt_rtx",
    # Those of its `ComputeCapability`, release 1.7. Data-centre GPUs (sm_90, sm_100) are not there.
    ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121"),
    True,
    "pip install 'megacompile[tensorrt-rtx]'",
)
TENSORRT = Flavour(
    "tensorrt",
    ("tensorrt", "tensorrt_bindings"),
    ("tensorrt-cu13-bindings", "tensorrt-cu12-bindings", "tensorrt"),
    "libnvinfer",
    None,
    False,
    "pip install tensorrt",
)
FLAVOURS: dict[str, Flavour] = {one.name: one for one in (RTX, TENSORRT)}


def installed_version(flavour: Flavour) -> str | None:
    """The version of its Python API, or None; nothing is imported."""
    return next(iter(installed(flavour.distributions).values()), None)


def missing(flavour: Flavour) -> str | None:
    """What is not installed of a flavour, or None; nothing is imported."""
    found = installed_version(flavour)
    if found is None:
        return f"{flavour.name} is not installed (looked for {' and '.join(flavour.distributions)})"
    if flavour is not RTX:
        return None
    if importlib.util.find_spec("tensorrt_rtx_libs") is not None:
        return None
    libraries = _plugin_libraries()
    if libraries is None:
        return (
            f"the bindings of tensorrt-rtx {found} are installed, its libraries are not "
            "(looked for tensorrt-rtx-cu13-libs and onnxruntime-ep-nv-tensorrt-rtx-cu13)"
        )
    carried = _library_version(libraries[1])
    if not found.startswith(f"{carried}."):
        return (
            f"the bindings of tensorrt-rtx are {found}, the libraries in "
            f"onnxruntime-ep-nv-tensorrt-rtx-cu13 are {carried}: they must match"
        )
    return None


def choose(wanted: str) -> Flavour:
    """The flavour of an option's value; `auto` prefers the one that is installed, RTX first."""
    if wanted != "auto":
        return FLAVOURS[wanted]
    return next((one for one in FLAVOURS.values() if missing(one) is None), RTX)


@cache
def load(name: str) -> Any:
    """The Python API of a flavour, its libraries loaded.

    Raises:
        BackendError: something is missing or can't be loaded.
    """
    flavour = FLAVOURS[name]
    reason = missing(flavour)
    if reason is not None:
        raise BackendError(what=reason, remedy=flavour.install)
    try:
        if flavour is RTX and importlib.util.find_spec("tensorrt_rtx_libs") is None:
            for path in _plugin_libraries() or ():
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        module = next(m for m in flavour.modules if importlib.util.find_spec(m) is not None)
        return importlib.import_module(module)
    except (OSError, ImportError, StopIteration) as error:
        raise BackendError(
            what=f"{flavour.name} can't be loaded",
            cause=f"{type(error).__name__}: {error}",
            remedy=flavour.install,
        ) from error


def _plugin_libraries() -> tuple[Path, ...] | None:
    """The libraries inside ONNX Runtime's plugin wheel, in the order they are to be loaded."""
    spec = importlib.util.find_spec(PLUGIN_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = tuple(_newest(folder, pattern) for pattern in PLUGIN_LIBRARIES)
    return None if None in found else tuple(path for path in found if path is not None)


def _newest(folder: Path, pattern: str) -> Path | None:
    # The wheel makes links of shorter names when it is imported; the longest name is the file.
    return max(folder.glob(pattern), key=lambda path: len(path.name), default=None)


def _library_version(path: Path) -> str:
    return path.name.split(".so.", 1)[1]


def loaded_from(flavour: Flavour) -> Iterator[str]:
    """Distributions whose versions change an engine."""
    yield from flavour.distributions
    if flavour is RTX:
        yield "onnxruntime-ep-nv-tensorrt-rtx-cu13"


def compute_capability(api: Any, arch: str) -> Any:
    """The builder's constant for an architecture, e.g. sm_89 -> ComputeCapability.SM89."""
    return getattr(api.ComputeCapability, re.sub("^sm_", "SM", arch))
