"""Other machines, shown through a fake /proc and a fake cgroup root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megacompile.system import machine


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


@pytest.fixture
def host(tmp_path):
    """Writes files below the fake roots: `proc/...` and `cgroups/...`."""

    def write(files: dict[str, str]) -> dict[str, Path]:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {"proc": tmp_path / "proc", "cgroups": tmp_path / "cgroups"}

    return write


def test_the_instruction_sets_are_those_that_every_core_has(host):
    text = (
        "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 avx512f amx_tile amx_bf16\n\n"
        "processor\t: 1\nmodel name\t: Xeon\nflags\t\t: fpu avx2 avx512f avx_vnni amx_tile\n"
    )
    proc = host({"proc/cpuinfo": text})["proc"]
    assert machine.cpu_isa(proc) == ["avx2", "avx512f", "amx_tile"]
    assert machine.machine_name(proc) == "Xeon"


def test_arm_spells_its_flags_as_features(host):
    proc = host({"proc/cpuinfo": "Features\t: fp asimd asimddp i8mm\n"})["proc"]
    assert machine.cpu_isa(proc) == ["asimd", "asimddp", "i8mm"]


def test_a_system_without_proc_still_has_a_name(tmp_path):
    assert machine.cpu_isa(tmp_path) == []
    assert machine.machine_name(tmp_path)
    assert machine.memory_mb(tmp_path, tmp_path) == 0
    assert machine.thread_budget(tmp_path, tmp_path) == 8


def test_affinity_counts_and_never_the_hosts_cores(host):
    assert machine.thread_budget(**host({"proc/self/cgroup": "0::/\n"})) == 8


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("150000 100000", 2), ("10000 100000", 1), ("max 100000", 8), ("3200000 100000", 8)],
)
def test_a_version_2_quota_is_rounded_up_to_whole_threads(host, quota, threads):
    roots = host({"proc/self/cgroup": "0::/a/b\n", "cgroups/a/b/cpu.max": quota + "\n"})
    assert machine.thread_budget(**roots) == threads


def test_a_parents_tighter_quota_holds(host):
    roots = host(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "cgroups/a/cpu.max": "300000 100000\n",
            "cgroups/a/b/cpu.max": "500000 100000\n",
        }
    )
    assert machine.thread_budget(**roots) == 3


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "threads"), [("250000", 3), ("-1", 8)])
def test_a_version_1_quota_is_found_under_either_name(host, folder, quota, threads):
    roots = host(
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
            f"cgroups/{folder}/x/cpu.cfs_quota_us": quota,
            f"cgroups/{folder}/x/cpu.cfs_period_us": "100000",
        }
    )
    assert machine.thread_budget(**roots) == threads


def test_in_a_container_the_hosts_path_leads_to_the_mounted_root(host):
    roots = host({"proc/self/cgroup": "0::/../docker/0123\n", "cgroups/cpu.max": "200000 100000\n"})
    assert machine.thread_budget(**roots) == 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cgroups/a/memory.max": str(512 * 2**20)}, 512),
        ({"cgroups/a/memory.max": "max"}, 1024),
        ({"cgroups/memory/b/memory.limit_in_bytes": str(256 * 2**20)}, 256),
        ({"cgroups/memory/b/memory.limit_in_bytes": "9223372036854771712"}, 1024),
    ],
)
def test_memory_is_the_machines_cut_by_the_cgroups(host, files, expected):
    roots = host(
        {
            "proc/self/cgroup": "4:memory:/b\n0::/a\n",
            "proc/meminfo": "MemTotal:        1048576 kB\nMemFree: 5 kB\n",
            **files,
        }
    )
    assert machine.memory_mb(**roots) == expected


def test_the_environment_says_what_there_is_and_what_is_used(host):
    roots = host({"proc/cpuinfo": "model name : A\nflags : avx2\n"})
    found = machine.environment(2, ["pytest"], **roots)
    assert (found.machine, found.isa, found.cores, found.threads) == ("A", ["avx2"], 64, 2)


def test_workers_get_one_budget_and_spin_less_than_a_pause():
    variables = machine.thread_environment(3)
    assert {variables[name] for name in variables if name.endswith("_THREADS")} == {"3"}
    assert "OMP_WAIT_POLICY" not in variables  # PASSIVE slows eager PyTorch down
    with pytest.raises(ValueError, match="at least one"):
        machine.thread_environment(0)


def test_the_machine_is_known_without_torch():
    import subprocess
    import sys

    code = "import sys, megacompile.system.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
