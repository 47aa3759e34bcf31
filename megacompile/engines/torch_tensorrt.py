"""Torch-TensorRT: the parts of an exported program that TensorRT takes become engines inside it."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from megacompile.engines.profiles import profile_of
from megacompile.engines.torchrunner import TorchRunner, moved, needs_cpu_kernels
from megacompile.errors import BackendError, did_you_mean
from megacompile.models import Exported, Signature, examples, quiet, to_torch
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Runner,
    Say,
    precision_of,
    silent,
)
from megacompile.system import installed, local_archs, no_gpu_reason

PROGRAM = "model.pt2"
INSTALL = "pip install torch-tensorrt"
# Arguments of its compile function that are ours to give, not the user's.
OURS = {"exported_program", "inputs", "arg_inputs", "kwarg_inputs", "device", "dryrun"}


class TorchTensorRT(Backend):
    name: ClassVar[str] = "torch-tensorrt"
    accepts: ClassVar[tuple[str, ...]] = ("Exported",)
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torch-tensorrt", "tensorrt")

    options: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of torch_tensorrt.dynamo.compile, "
        "checked against the installed version",
    )

    def availability(self, target: Machine) -> Availability:
        version = installed(["torch-tensorrt"]).get("torch-tensorrt")
        if version is None:
            return Availability(
                "the package 'torch-tensorrt' is not installed", f"{INSTALL}, or use tensorrt"
            )
        absent = target.absent() if local_archs() else no_gpu_reason()
        if absent:
            return Availability(
                f"torch-tensorrt {version} is loaded and compiles only where the GPU is: {absent}",
                "build on the target machine, or use tensorrt, which is built without a GPU",
            )
        return Availability()

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        if target.device != "cuda":
            return "Torch-TensorRT runs on NVIDIA GPUs", "write `target: {device: cuda}`"
        known = parameters()
        for name in self.options:
            if name in OURS:
                return f"option '{name}' of torch-tensorrt is set by megacompile", "leave it out"
            if known is not None and name not in known:
                return (
                    f"torch_tensorrt.dynamo.compile has no parameter '{name}'",
                    did_you_mean(name, known - OURS) or "see its documentation",
                )
        return needs_cpu_kernels(facts, target)

    def compile(
        self,
        model: Exported,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        import torch
        import torch_tensorrt

        program = moved(model.program, "cuda")
        inputs = _inputs(torch_tensorrt, model.signature)
        report = out / "dryrun.txt"
        try:
            with quiet(), torch.no_grad():
                progress("asking what TensorRT takes")
                torch_tensorrt.dynamo.compile(program, inputs, dryrun=str(report), **self.options)
                coverage = read_coverage(report.read_text())
                report.unlink()
                progress(f"building {coverage.engines} engines")
                compiled = torch_tensorrt.dynamo.compile(program, inputs, **self.options)
                torch_tensorrt.save(compiled, str(out / PROGRAM), inputs=inputs)
        except Exception as error:  # whatever converters and TensorRT raise
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise BackendError(
                what="Torch-TensorRT can't compile the program",
                cause=f"{type(error).__name__}: {lines[0] if lines else ''}",
                remedy="use tensorrt or aotinductor for this variant",
            ) from error
        if coverage.engines == 0:
            raise BackendError(
                what="Torch-TensorRT leaves the whole model to PyTorch",
                got=f"0 of {coverage.operators} operators in an engine",
                remedy="lower min_block_size, or use another backend",
            )
        return Lowered(precision_of(facts), notes=coverage.notes())

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        import torch_tensorrt

        with quiet():
            module = torch_tensorrt.load(str(out / PROGRAM)).module()
        return TorchRunner(module, target.threads, signature, "cuda")


@dataclass(frozen=True)
class Coverage:
    """What a dry run found: operators in all, those TensorRT takes, engines, and what is left."""

    operators: int
    supported: int
    engines: int
    left: tuple[str, ...]

    def notes(self) -> list[str]:
        found = [
            f"{self.supported} of {self.operators} operators are TensorRT's, in "
            f"{self.engines} engines"
        ]
        if self.left:
            more = f" and {len(self.left) - 10} more" if len(self.left) > 10 else ""
            found.append("left to PyTorch: " + ", ".join(self.left[:10]) + more)
        return found


def read_coverage(text: str) -> Coverage:
    """The figures of a dry run's text (torch_tensorrt.dynamo._DryRunTracker, release 2.13).

    Raises:
        BackendError: the text has another layout.
    """
    totals = re.search(r"consists of (\d+) Total Operators, of which (\d+) operators", text)
    if totals is None:
        raise BackendError(
            what="the dry run of this torch-tensorrt can't be read",
            expected="'The graph consists of N Total Operators, of which …'",
            got=text.strip()[:200],
            audience="megacompile",
        )
    listed = re.search(r"set to run in Torch:\n(.*?)\n(?:Note:|\n)", text, re.DOTALL)
    left = tuple(line.strip() for line in listed[1].splitlines()) if listed else ()
    engines = len(re.findall(r"TRT Engine #\d+", text))
    return Coverage(int(totals[1]), int(totals[2]), engines, left)


@cache
def parameters() -> frozenset[str] | None:
    """Parameters of the installed torch_tensorrt.dynamo.compile, read off its source: importing
    it needs a driver. None if it is not installed."""
    spec = importlib.util.find_spec("torch_tensorrt")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(next(iter(spec.submodule_search_locations))) / "dynamo" / "_compiler.py"
    if not source.is_file():
        return None
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "compile":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return frozenset(one.arg for one in arguments)
    return None


def _inputs(library: Any, signature: Signature) -> list[Any]:
    """One input description per tensor: its smallest, typical and largest shape."""
    typical = examples.make(signature, examples.sizes(signature, "typical"))
    found = []
    for name, (low, middle, high) in profile_of(signature).items():
        dtype = to_torch(typical[name]).dtype
        if low == high:
            given = library.Input(middle, dtype=dtype)
        else:
            given = library.Input(min_shape=low, opt_shape=middle, max_shape=high, dtype=dtype)
        found.append(given)
    return found
