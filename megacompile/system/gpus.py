"""NVIDIA GPUs of this machine, read off the driver; no CUDA context is made, no torch imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU. `arch` is its compute capability as compilers spell it, e.g. sm_89; `driver` the
    driver's version."""

    name: str
    arch: str
    memory_mb: int
    driver: str


@cache
def gpus() -> tuple[Gpu, ...]:
    """All GPUs that the driver shows, in its order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        return tuple(_describe(index, driver) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _describe(index: int, driver: str) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total // MEBIBYTE
    return Gpu(str(pynvml.nvmlDeviceGetName(handle)), f"sm_{major}{minor}", memory, driver)


def local_archs() -> tuple[str, ...]:
    """Compute capabilities of this machine's GPUs, each once."""
    return tuple(dict.fromkeys(gpu.arch for gpu in gpus()))


def process_memory_mb() -> float | None:
    """GPU memory that this process holds, in MB, over all its libraries.

    Allocators keep what they once needed, so that after a run this is its peak. None where the
    driver can't tell processes apart (in a container with its own process numbers).
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        held = [
            process.usedGpuMemory
            for handle in handles
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid == os.getpid() and process.usedGpuMemory is not None
        ]
        return round(sum(held) / 1e6, 1) if held else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def no_gpu_reason() -> str:
    """Why nothing runs on a GPU here."""
    return "this machine has no NVIDIA GPU, or no driver for it"
