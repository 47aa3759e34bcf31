"""GPUs as a driver shows them: a driver that is made up, one that fails, and none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from megacompile.system.gpus import Gpu, gpus, local_archs, process_memory_mb

Driver = Callable[..., None]


class NVMLError(Exception):
    """What the driver raises."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Put a made-up driver in the place of the real one; `archs` are its GPUs'."""
    opened: list[int] = []

    def install(*archs: tuple[int, int], **changes: Any) -> None:
        functions: dict[str, Any] = {
            "NVMLError": NVMLError,
            "nvmlInit": lambda: opened.append(1),
            "nvmlShutdown": lambda: opened.pop(),
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: len(archs),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: archs[handle],
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=(handle + 1) * 2**30),
            "nvmlDeviceGetName": lambda handle: f"GPU {handle}",
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [],
            **changes,
        }
        monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**functions))
        gpus.cache_clear()

    gpus.cache_clear()
    yield install
    gpus.cache_clear()
    assert opened == [], "the driver was opened and not closed"


def no_driver() -> None:
    raise NVMLError("driver not loaded")


def test_every_gpu_is_described(driver: Driver) -> None:
    driver((8, 9), (12, 0))
    assert gpus() == (
        Gpu("GPU 0", "sm_89", 1024, "580.1"),
        Gpu("GPU 1", "sm_120", 2048, "580.1"),
    )


def test_an_architecture_is_told_once(driver: Driver) -> None:
    driver((9, 0), (8, 9), (9, 0))
    assert local_archs() == ("sm_90", "sm_89")


def test_without_a_driver_there_is_no_gpu(driver: Driver) -> None:
    driver((9, 0), nvmlInit=no_driver)
    assert gpus() == ()
    assert local_archs() == ()
    assert process_memory_mb() is None


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def test_memory_is_this_processs_over_all_gpus(driver: Driver) -> None:
    mine, other = os.getpid(), os.getpid() + 1
    held = [[process(mine, 3_000_000), process(other, 9_000_000)], [process(mine, 500_000)]]
    driver((9, 0), (9, 0), nvmlDeviceGetComputeRunningProcesses=lambda handle: held[handle])
    assert process_memory_mb() == 3.5


@pytest.mark.parametrize("used", [None, "not listed"])
def test_memory_is_unknown_where_the_driver_cannot_tell(driver: Driver, used: Any) -> None:
    listed = [] if used == "not listed" else [process(os.getpid(), None)]
    driver((9, 0), nvmlDeviceGetComputeRunningProcesses=lambda handle: listed)
    assert process_memory_mb() is None


def test_a_driver_that_fails_on_the_way_is_closed(driver: Driver) -> None:
    def fails(handle: int) -> None:
        raise NVMLError("not supported")

    driver((9, 0), nvmlDeviceGetComputeRunningProcesses=fails)
    assert process_memory_mb() is None
