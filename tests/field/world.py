"""A user's files in a temporary folder, taken through plan, inspection and one candidate."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.builder import main as builder
from megacompile.builder.keys import FORM
from megacompile.builder.worker import build_candidate
from megacompile.engines.compiled import CompiledModel
from megacompile.engines.loading import here
from megacompile.errors import MegacompileError
from megacompile.measure.original import Original, examine
from megacompile.models.source import load_original
from megacompile.plan.backends import Machine
from megacompile.plan.planner import make_plan
from megacompile.report.model import Step
from megacompile.spec.load import load_spec_data
from megacompile.system.cache import Cache

MODEL = "model.py:build"


@dataclass
class Built:
    """A candidate that was built: its steps, its engine as a callable, and the original."""

    steps: list[Step]
    lowering: Step
    run: CompiledModel
    reference: CompiledModel
    original: Original
    folder: Path

    def step(self, name: str) -> Step:
        return next(s for s in self.steps if s.pass_ == name)

    def check(self, *feeds: Mapping[str, Any], atol: float = 1e-5, rtol: float = 1e-4) -> None:
        """The engine answers like the original."""
        for one in feeds:
            got, expected = self.run.leaves(one), self.reference.leaves(one)
            assert list(got) == list(expected)
            for name, array in expected.items():
                np.testing.assert_allclose(got[name], array, atol=atol, rtol=rtol, err_msg=name)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write a user's files."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))


def spec(**parts: Any) -> dict[str, Any]:
    """A spec for `model.py:build` on ONNX Runtime, with parts replaced."""
    return {
        "name": "case",
        "model": {"python": MODEL},
        "backends": ["onnxruntime"],
        "inputs": {},
        "benchmark": {"baselines": ["eager"]},
        **parts,
    }


def build(folder: Path, data: dict[str, Any], files: Mapping[str, str] | None = None) -> Built:
    """Plan, inspect, and build the spec's only candidate.

    Raises:
        MegacompileError: whatever refuses it, at whichever stage.
    """
    write(folder, files or {})
    if data["model"].get("onnx"):
        data["benchmark"] = {"baselines": ["onnxruntime"]}
    loaded = load_spec_data(data, folder)
    machine = here()
    plan = make_plan(loaded, lambda _: machine, builder.quantized_source(loaded))
    (candidate,) = plan.candidates
    assert candidate.unavailable is None, candidate.unavailable
    cache, place = Cache(folder / "cache"), folder / "inspection"
    place.mkdir(exist_ok=True)
    original = examine(plan.spec, folder, place)
    events: list[dict[str, Any]] = []
    request = _request(data, folder, machine, original, cache, candidate.name, candidate.variant)
    build_candidate(request, events.append)
    steps = [Step.model_validate(e["record"]) for e in events if e["event"] == "step"]
    engine = next(e for e in events if e["event"] == "engine")
    entry = cache.get(engine["key"])
    assert entry is not None
    signature = original.signature(plan.spec)
    runner = candidate.backend.load(entry.folder / FORM, machine, signature)
    source = load_original(plan.spec, folder, signature)
    return Built(
        steps,
        Step.model_validate(engine["record"]),
        CompiledModel(runner.run, signature),
        CompiledModel(source.run, signature),
        original,
        entry.folder / FORM,
    )


def _request(
    data: dict[str, Any],
    folder: Path,
    machine: Machine,
    original: Original,
    cache: Cache,
    name: str,
    variant: str,
) -> dict[str, Any]:
    loaded = load_spec_data(data, folder)
    assert loaded.spec is not None
    return {
        "spec": loaded.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "base": str(folder),
        "cache": str(cache.root),
        "machine": dataclasses.asdict(machine),
        "quantized": builder.quantized_source(loaded),
        "original": original.to_dict(),
        "candidate": name,
        "variant": variant,
        "dump": None,
        "verify_each": True,
    }


def refused(
    folder: Path, data: dict[str, Any], files: Mapping[str, str] | None = None
) -> MegacompileError:
    """The error that stops the candidate."""
    with pytest.raises(MegacompileError) as caught:
        build(folder, data, files)
    return caught.value


def tensor(*shape: str | int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, **more}


def dim(low: int, typical: int, high: int) -> dict[str, int]:
    return {"min": low, "typical": typical, "max": high}


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
