"""Cache keys: what a stored step or engine depends on. Nothing heavy is imported here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache as remember
from pathlib import Path
from typing import Any

from megacompile import __version__
from megacompile.measure import Original
from megacompile.plan import Backend, CandidatePlan, Machine, Pass
from megacompile.spec import Spec
from megacompile.system import hooks, installed, key_of, sources_hash

FORM = "form"  # the folder of an entry that holds the form or engine
SAMPLES = "sample-outputs.npz"
# Our own code that decides what a stored step is worth: files, and folders with all below them.
OWN = (
    "models",
    "training",
    "plan/passes.py",
    "plan/declarations.py",
    "measure/original.py",
    "measure/calibration.py",
    "measure/sanity_checks.py",
    "measure/instruments",
    "measure/training",
    "builder/manager.py",
    "builder/lowering.py",
)
HOUSE = Path(__file__).parents[1]


@remember
def own_hash() -> str:
    """A hash of our own code that decides what a stored step is worth."""
    return key_of(__version__, *(sources_below(HOUSE / name) for name in OWN))


@remember
def sources_below(path: Path) -> str:
    """A hash of a Python file, or of all Python files of a folder: passes share helpers."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    texts = [(file.relative_to(path.parent).as_posix(), file.read_text()) for file in files]
    return key_of(*texts)


def library_of(cls: type) -> Path:
    """What a class's code may come from: the folder of its outermost package, or its file if it
    is in none. Of our own classes it is their room.
    """
    file = Path(inspect.getfile(cls))
    if HOUSE in file.parents:
        return HOUSE / file.relative_to(HOUSE).parts[0]
    depth = cls.__module__.count(".") + (file.name == "__init__.py")  # packages it lies in
    return file.parents[depth - 1] if depth else file


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions by distribution name, "none" for those not installed."""
    found = installed(names)
    return {name: found.get(name, "none") for name in names}


def root_key(spec: Spec, original: Original) -> str:
    """The key of the original under the spec's inputs."""
    described = spec.model_dump(mode="json", by_alias=True, include={"inputs", "dims", "outputs"})
    known = (original.fingerprint, described, spec.seed, original.outputs)
    return key_of("original", own_hash(), *known)


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
    if hooks.is_user_module(cls.__module__):
        source = sources_hash(Path(inspect.getfile(cls)))
    else:
        source = sources_below(library_of(cls))
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
    """The key of an engine: the form it is made from, the backend, and the machine."""
    return key_of(
        "engine",
        before,
        backend.name,
        backend.model_dump(mode="json"),
        sources_below(library_of(type(backend))),
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
