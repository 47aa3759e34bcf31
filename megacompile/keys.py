"""Cache keys: what a stored step or engine depends on. Nothing heavy is imported here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache as remember
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from megacompile import __version__, hooks
from megacompile.backendbase import Backend, Machine
from megacompile.cache import key_of, sources_hash
from megacompile.original import Original
from megacompile.passbase import Pass
from megacompile.plan import CandidatePlan
from megacompile.spec.models import Spec

FORM = "form"  # the folder of an entry that holds the form or engine
SAMPLES = "sample-outputs.npz"
# Our own modules whose code decides what a stored step is worth.
OWN = (
    "forms",
    "torchmodules",
    "onnxfile",
    "signature",
    "structure",
    "examples",
    "compare",
    "source",
    "original",
    "manager",
    "passbase",
)


@remember
def own_hash() -> str:
    folder = Path(__file__).parent
    files = [folder / f"{name}.py" for name in OWN]
    files += sorted((folder / "instruments").glob("*.py"))
    files += sorted((folder / "training").glob("*.py"))
    return key_of(__version__, *(f.read_text() for f in files))


@remember
def package_hash(folder: Path) -> str:
    """A hash of all Python files of a pass library: passes share helpers."""
    return key_of(*((f.name, f.read_text()) for f in sorted(folder.rglob("*.py"))))


def versions(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def root_key(spec: Spec, original: Original) -> str:
    """The key of the original under the spec's inputs."""
    described = spec.model_dump(mode="json", by_alias=True, include={"inputs", "dims", "outputs"})
    return key_of(
        "original", own_hash(), original.fingerprint, described, spec.seed, original.outputs
    )


def step_key(
    before: str,
    pass_: Pass[Any, Any],
    original: Original,
    base: Path,
    evaluation: str | None = None,
) -> str:
    """The key of a step: what it started from, its options, source, libraries, and data.

    The backend is no part of it: what a pass takes from the backend stands in its resolved
    options, so that candidates share their steps up to where they part.
    """
    cls = type(pass_)
    file = Path(inspect.getfile(cls))
    source = (
        sources_hash(file) if hooks.is_user_module(cls.__module__) else package_hash(file.parent)
    )
    libraries = versions([*cls.libraries, "torch", "onnx"])
    data = [original.calibration_hash]
    if original.training_hash is not None:
        data.append(original.training_hash)
    references = list(pass_.references())
    if pass_.uses_evaluation() and evaluation is not None:
        references.append(evaluation)
    for reference in references:
        path = hooks.locate(reference, base)[0]
        data.append(sources_hash(path) if path else reference)
    return key_of(before, cls.__qualname__, pass_.model_dump(mode="json"), source, libraries, *data)


def engine_key(before: str, backend: Backend, machine: Machine) -> str:
    file = Path(inspect.getfile(type(backend)))
    return key_of(
        "engine",
        before,
        backend.name,
        backend.model_dump(mode="json"),
        package_hash(file.parent),
        versions(backend.libraries),
        machine.isa,
        machine.threads,
        machine.device,
        machine.arch,
        machine.absent(),
    )


def keys_of(
    plan: CandidatePlan, spec: Spec, original: Original, machine: Machine, base: Path
) -> list[str]:
    """Keys of all steps and, last, of the engine. Nothing heavy is imported."""
    keys = [root_key(spec, original)]
    evaluation = spec.data.evaluation.python if spec.data.evaluation else None
    for step in plan.steps:
        keys.append(step_key(keys[-1], step.pass_, original, base, evaluation))
    return [*keys[1:], engine_key(keys[-1], plan.backend, machine)]
