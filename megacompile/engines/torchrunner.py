"""The runner of all torch engines: leaves in, a tuple of leaves out."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from megacompile.models import Feeds, Signature, to_numpy, to_torch
from megacompile.plan import Availability, Fact, Machine, Runner

if TYPE_CHECKING:
    import torch


class TorchRunner(Runner):
    """Calls anything that takes tensor leaves in order and returns output leaves in order.

    On device cuda, inputs are put there and a prepared call ends when the GPU is done.
    """

    def __init__(
        self, call: Callable[..., Any], threads: int, signature: Signature, device: str = "cpu"
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self.call: Any = call
        self.signature = signature
        self.device = device

    def run(self, feeds: Feeds) -> Feeds:
        outputs = self.prepare(feeds)()
        return dict(zip(self.signature.outputs, map(to_numpy, outputs), strict=True))

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        import torch

        tensors = [to_torch(feeds[name]).to(self.device) for name in self.signature.tensors]
        call = self.call

        def once() -> Any:
            with torch.inference_mode():
                return call(*tensors)

        return once if self.device == "cpu" else waited(once)

    def close(self) -> None:
        self.call = None


def waited(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, until the GPU has finished what it started: a launch alone is no latency."""
    import torch

    def once() -> Any:
        value = call()
        torch.cuda.synchronize()
        return value

    return once


def moved(program: torch.export.ExportedProgram, device: str) -> torch.export.ExportedProgram:
    """An exported program whose weights and new tensors lie on a device."""
    if device == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def torch_on(target: Machine) -> Availability:
    """Whether torch can run on the target's device on this machine."""
    if target.device == "cpu":
        return Availability()
    reason = target.absent()
    if reason is not None:
        return Availability(
            f"{reason}: torch compiles and runs CUDA code only where the GPU is",
            "build there, or use tensorrt, which is built without a GPU",
        )
    installed = version("torch")  # the module itself takes seconds to import
    if installed.endswith("+cpu"):
        return Availability(
            f"torch {installed} is a build without CUDA",
            "install torch's CUDA build, or use tensorrt",
        )
    return Availability()


def needs_cpu_kernels(facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
    """A refusal of PT2E's int8 models on a GPU."""
    if target.device == "cuda" and Fact.QUANTIZED in facts:
        return (
            "torch's int8 operators of this quantizer run on x86 CPUs alone",
            "use tensorrt for int8 on a GPU, or cast to bfloat16 or float16",
        )
    return None
