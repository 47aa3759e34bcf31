"""A small trained model with its form, for tests: real digits, no spec file needed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from megacompile.models.signature import Signature, bind
from megacompile.plan.passes import PassContext, Traits
from megacompile.spec.inputs import Dim, TensorInput
from megacompile.spec.training import Train
from megacompile.training.batches import Batches
from megacompile.training.context import Origin, TrainingContext
from megacompile.training.form import Training
from megacompile.training.loading import Batch
from megacompile.training.recipe import Recipe
from megacompile.training.step import TrainingStep
from megacompile.training.ties import find_ties

SPECS = Path(__file__).resolve().parents[2] / "specs"
ISA = ("avx2", "avx512_bf16", "avx512_fp16")


def digits() -> ModuleType:
    """The hooks of specs/digits_train.yaml."""
    name = "tests_digits_train"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SPECS / "digits_train.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def make_train(**changes: Any) -> Train:
    """How the toy is trained."""
    given: dict[str, Any] = {
        "loss": "digits_train.py:loss",
        "batches": "digits_train.py:batches",
        "batch_size": 16,
        "accumulate": 2,
        "clip_norm": 1.0,
        "optimizer": {"adamw": {"lr": 1e-3}},
    }
    return Train(**{**given, **changes})


def make_form(
    module: nn.Module | None = None,
    recipe: Recipe | None = None,
    *,
    dropout: bool = True,
    **train: Any,
) -> Training:
    """The digits model (or another one on the same images) to be trained."""
    module = module if module is not None else digits().build()
    if not dropout:
        for one in module.modules():
            if isinstance(one, nn.Dropout):
                one.p = 0.0
    inputs = {"image": TensorInput(shape=["batch", 8, 8])}
    signature = Signature(inputs, {"batch": Dim(min=1, typical=4, max=64)})
    signature = signature.with_outputs(["output"], {"tensor": "output"}, ["float32"])
    origin = Origin("digits_train.py:build", SPECS, make_train(**train))
    recipe = recipe or Recipe(ties=find_ties(module))
    return Training(module.eval(), signature, bind(module.forward, inputs, "test"), recipe, origin)


def make_context(tmp_path: Path, form: Training, **changes: Any) -> PassContext:
    """What a pass gets in a training build."""
    given: dict[str, Any] = {"isa": ISA, "threads": 2}
    training = TrainingContext(form.origin, **{**given, **changes})
    return PassContext(
        work=tmp_path,
        target_threads=2,
        seed=0,
        traits=Traits("training"),
        calibration=lambda: iter(()),
        examples=lambda which: {},
        training=training,
        base=form.origin.base,
    )


def batches_of(form: Training) -> Iterator[Batch]:
    """The form's own batches."""
    origin = form.origin
    return iter(Batches(origin.train, origin.base, origin.seed))


def gradients_of(step: TrainingStep, batch: Batch) -> dict[str, torch.Tensor]:
    """A step's gradients of one batch."""
    step.gather(batch)
    return step.gradients()


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **tolerance: Any) -> None:
    """The same tensors by name."""
    assert set(a) == set(b)
    for name, value in a.items():
        torch.testing.assert_close(
            value, b[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance
        )
