"""What this machine is, and how much of it this process may use. Linux first, no torch.

`proc` and `cgroups` are parameters so that a test can show another machine.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from megacompile.system.gpus import gpus
from megacompile.system.libraries import LIBRARIES, installed

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")

# The instruction sets that decide which kernels run, as /proc/cpuinfo spells them.
KNOWN_ISA: Final = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "avx_vnni_int8",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)

# libgomp counts turns of a loop, not time: some 5 ms on an EPYC, where the default (300,000)
# takes 8 ms, and twice that on processors with a slower pause instruction.
_SPIN_TURNS: Final = 200_000


class Environment(BaseModel):
    """The machine and the versions the figures were taken with, as they stand in reports."""

    model_config = ConfigDict(extra="forbid")

    machine: str
    isa: list[str]
    cores: int
    threads: int
    memory_mb: int
    gpus: list[str] = Field(default_factory=list)
    system: str
    python: str
    versions: dict[str, str]
    load_average: float | None = None


def cpu_isa(proc: Path = PROC) -> list[str]:
    """Instruction set extensions that every core has, in the order of `KNOWN_ISA`.

    Empty where there is no /proc/cpuinfo.
    """
    flags: set[str] | None = None
    for key, value in _cpuinfo(proc):
        if key in ("flags", "Features"):
            found = set(value.split())
            flags = found if flags is None else flags & found
    return [name for name in KNOWN_ISA if name in (flags or set())]


def machine_name(proc: Path = PROC) -> str:
    """The processor's name as the system gives it, or its architecture."""
    for key, value in _cpuinfo(proc):
        if key in ("model name", "Hardware", "Model") and value:
            return value
    return platform.processor() or platform.machine() or "unknown"


def thread_budget(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Threads this process can really run at once: its affinity, cut by the cgroup's quota.

    A quota of 1.5 cores gives 2; never below 1. The host's core count plays no part.
    """
    return max(1, min([_affinity(), *_quotas(proc, cgroups)]))


def memory_mb(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory this process may use, in MiB: the machine's, cut by its cgroups; 0 when unknown."""
    limits = [*_memory_limits(proc, cgroups), *_installed_memory(proc)]
    return min(limits) // 2**20 if limits else 0


def load_average() -> float | None:
    """Runnable processes over the last minute; None where the system doesn't say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def environment(
    threads: int,
    libraries: Iterable[str] = LIBRARIES,
    proc: Path = PROC,
    cgroups: Path = CGROUPS,
) -> Environment:
    """This machine as a record. `cores` is what the machine shows, `threads` is used."""
    return Environment(
        machine=machine_name(proc),
        isa=cpu_isa(proc),
        cores=os.cpu_count() or 1,
        threads=threads,
        memory_mb=memory_mb(proc, cgroups),
        gpus=[f"{gpu.name} ({gpu.arch}, driver {gpu.driver})" for gpu in gpus()],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=installed(libraries),
        load_average=load_average(),
    )


def thread_environment(threads: int) -> dict[str, str]:
    """Variables for a worker process, to be set before it imports any numeric library.

    Every library gets the same budget, whichever OpenMP or BLAS it brings. ValueError below 1.
    """
    if threads < 1:
        raise ValueError(f"a worker needs at least one thread, not {threads}")
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "VECLIB_MAXIMUM_THREADS": count,
        # A library that picks fewer threads on a busy machine would change what is measured.
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # After a parallel region the threads spin, waiting for the next one. A worker whose turn
        # is over must have stopped that before the next worker's turn, or it takes its cores
        # away. But between two operators of one call the spinning is what makes the next one
        # start at once: OMP_WAIT_POLICY=PASSIVE, which forbids it, made eager PyTorch two to
        # three times slower here, and that would flatter every candidate. So the spinning is
        # only kept shorter than the pause between turns (`rounds.Schedule.pause_s`). GNU's and
        # Intel's/LLVM's runtimes have a variable each; the policy stays unset, as users have it.
        "GOMP_SPINCOUNT": str(_SPIN_TURNS),
        "KMP_BLOCKTIME": "8",
    }


def _cpuinfo(proc: Path) -> Iterator[tuple[str, str]]:
    for line in _text(proc / "cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows can't restrict a process like that


def _quotas(proc: Path, cgroups: Path) -> Iterator[int]:
    """Cores by every quota that applies, rounded up."""
    for folder in _folders(proc, cgroups, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")  # version 2
        if not quota:
            quota = _text(folder / "cpu.cfs_quota_us").strip()  # version 1
            period = _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield math.ceil(int(quota) / int(period))


def _memory_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Bytes by every limit that applies; 'max' and absent ones give none."""
    for folder in _folders(proc, cgroups, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            limit = _text(folder / name).strip()
            if limit.isdigit():
                yield int(limit)


def _installed_memory(proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * 1024


def _folders(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """The process's cgroup and all those above it: each may hold the tightest limit.

    In a container the path often names a folder of the host that isn't mounted; its parents
    lead up to the mounted root, which then is the container's own.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        if controllers:
            roots = [cgroups / controllers, cgroups / controller]  # 'cpu,cpuacct' or its link
        else:
            roots = [cgroups, cgroups / "unified"]
        # '..' appears where the process was moved out of its namespace's root.
        parts = [part for part in path.split("/") if part and part != ".."]
        for root in roots:
            for depth in range(len(parts), -1, -1):
                folder = root.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


def _text(path: Path) -> str:
    """The file's text; empty where there is none: systems differ in what they offer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
