"""One file or folder for each backend, and the bundle an engine travels in."""

from megacompile.engines.bundle import (
    DEPLOY,
    ENGINE,
    SAMPLE_INPUTS,
    SPEC,
    Contents,
    write_bundle,
)
from megacompile.engines.compiled import CompiledModel
from megacompile.engines.loading import check_samples, here, load, load_compiled, load_runner
from megacompile.engines.manifest import read_manifest
from megacompile.engines.torchrunner import TorchRunner
from megacompile.engines.trained import training_step
from megacompile.engines.unfinished import (
    REPORT,
    Part,
    Unfinished,
    checks_of,
    folder_of,
    load_part,
    parts_of,
    read_unfinished,
    write_unfinished,
)

__all__ = [
    "DEPLOY",
    "ENGINE",
    "REPORT",
    "SAMPLE_INPUTS",
    "SPEC",
    "CompiledModel",
    "Contents",
    "Part",
    "TorchRunner",
    "Unfinished",
    "check_samples",
    "checks_of",
    "folder_of",
    "here",
    "load",
    "load_compiled",
    "load_part",
    "load_runner",
    "parts_of",
    "read_manifest",
    "read_unfinished",
    "training_step",
    "write_bundle",
    "write_unfinished",
]
