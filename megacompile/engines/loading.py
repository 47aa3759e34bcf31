"""A bundle read back: checked against this machine, its engine loaded, its samples run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megacompile.engines.bundle import ENGINE, SAMPLE_INPUTS, SAMPLE_OUTPUTS
from megacompile.engines.compiled import CompiledModel
from megacompile.engines.manifest import read_manifest
from megacompile.engines.training import TrainedRunner
from megacompile.errors import BundleError, MegacompileError
from megacompile.models import Feeds, InputSet, Signature, compare, load_arrays
from megacompile.plan import Machine, Runner, backend_class
from megacompile.system import cpu_isa, installed, local_archs, thread_budget

# Int8 products of two machines round alike; float sums differ in their order.
SAMPLE_COSINE = 0.99


def here(threads: int | None = None, device: str = "cpu") -> Machine:
    """This machine, with a thread budget from affinity and cgroup unless one is given."""
    return Machine(device, threads or thread_budget(), tuple(cpu_isa()), local_archs())


def load_runner(folder: Path, threads: int | None = None) -> tuple[Runner, Signature]:
    """Check a bundle and load its engine.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    manifest = checked_manifest(folder)
    signature = Signature.from_dict(manifest["signature"])
    backend = backend_class(manifest["backend"])(**manifest["options"])
    machine = here(threads, manifest["target"]["device"])
    return backend.load(folder / ENGINE, machine, signature), signature


def checked_manifest(folder: Path) -> dict[str, Any]:
    """A bundle's manifest, after its files and what it needs of this machine were checked.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    manifest = read_manifest(folder)
    machine = here(device=manifest["target"]["device"])
    if not manifest.get("executed", True):
        raise BundleError(
            what="the bundle was built for other hardware and never executed",
            where=str(folder),
            got=", ".join(manifest["target"]["arch"]),
            remedy="run `megacompile finish BUNDLE` on the target machine first",
        )
    if machine.absent():
        raise BundleError(
            what="the bundle's engine runs on an NVIDIA GPU",
            where=str(folder),
            got=machine.absent(),
            remedy="load it on the target machine",
        )
    lacking = [name for name in manifest["target"]["needs_isa"] if name not in machine.isa]
    if lacking:
        raise BundleError(
            what="this CPU would not run the engine, or would compute other numbers",
            where=str(folder),
            expected=", ".join(manifest["target"]["needs_isa"]),
            got=f"a CPU without {', '.join(lacking)}",
            remedy="build on this machine: the spec lies in the bundle's spec.json",
        )
    _check_versions(folder, manifest["versions"])
    return manifest


def _check_versions(folder: Path, versions: dict[str, str]) -> None:
    found = installed(versions)
    for name, built in versions.items():
        if name not in found:
            raise BundleError(
                what=f"the bundle needs '{name}', which is not installed",
                where=str(folder),
                expected=f"{name} {built}",
                remedy=f"pip install '{name}=={built.split('+')[0]}'",
            )
        # Compiled torch packages and programs are tied to torch's minor version.
        if name == "torch" and found[name].split(".")[:2] != built.split(".")[:2]:
            raise BundleError(
                what="the engine was compiled for another torch",
                where=str(folder),
                expected=f"torch {built}",
                got=f"torch {found[name]}",
                remedy="install that version, or build again",
            )


def load(bundle: str | Path, threads: int | None = None) -> Any:
    """Load a bundle: a `CompiledModel`, a callable with the original's inputs and outputs; of a
    training bundle the `torch.nn.Module` itself, in evaluation mode (its step is
    `megacompile.training_step`).

    Args:
        bundle: the folder, e.g. "build/minilm".
        threads: number of threads; default: what this process's affinity and cgroup allow.

    Raises:
        BundleError: damaged, incomplete, for other hardware, or for other library versions.
    """
    runner, signature = load_runner(Path(bundle), threads)
    if isinstance(runner, TrainedRunner):
        return runner.form.module
    return CompiledModel(runner.run, signature)


def load_compiled(bundle: str | Path, threads: int | None = None) -> CompiledModel:
    """Any bundle as a callable on arrays.

    Raises:
        BundleError: as in `load`.
    """
    runner, signature = load_runner(Path(bundle), threads)
    return CompiledModel(runner.run, signature)


def check_samples(folder: Path, run: Callable[[Feeds], Feeds]) -> float:
    """Run the bundle's own samples; returns the least cosine to the stored answers.

    Raises:
        BundleError: this machine computes something else than the one that built it.
    """
    stored = InputSet(
        "the bundle's samples",
        load_arrays(folder / SAMPLE_INPUTS),
        load_arrays(folder / SAMPLE_OUTPUTS),
    )
    try:
        found = compare([stored], [run(stored.feeds)])
    except MegacompileError:
        raise
    except Exception as error:
        raise BundleError(
            what="the engine fails on the bundle's own samples",
            where=str(folder),
            cause=f"{type(error).__name__}: {error}",
        ) from error
    if found.failures or found.cosine_min < SAMPLE_COSINE:
        raise BundleError(
            what="this machine computes something else than the one that built it",
            where=str(folder),
            expected=f"cosine of at least {SAMPLE_COSINE} on the stored samples",
            got=found.failures[0] if found.failures else f"{found.cosine_min:.4f}",
            remedy="build on this machine",
        )
    return found.cosine_min
