"""The plain step tried once before anything is built: faults of loss or data show here."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import torch

from megacompile.errors import DataError, ModelError
from megacompile.models import Eager, torch_dtype
from megacompile.spec import Spec, Train
from megacompile.system import hooks, key_of
from megacompile.training import Origin, Recipe, Training, hook_hashes
from megacompile.training.batches import Batches
from megacompile.training.loading import Batch
from megacompile.training.ties import find_ties

SHOWN = 5
RANDOM = 1e-3  # of a loss: more is no rounding


def plain_form(form: Eager, spec: Spec, base: Path) -> Training:
    """The user's model under the empty recipe."""
    assert spec.train is not None
    assert spec.model.python is not None
    origin = Origin(spec.model.python, base, spec.train, spec.seed)
    recipe = Recipe(ties=find_ties(form.module))
    return Training(form.module, form.signature, form.binding, recipe, origin)


def try_plain_step(form: Eager, spec: Spec, base: Path) -> str:
    """Take the gradients of one plain batch; returns a hash of the training data and hooks.

    Raises:
        DataError: the batches can't be used. ModelError: the loss is no scalar or not finite, or
            a parameter gets no gradient.
    """
    train = spec.train
    assert train is not None
    batch = next(iter(Batches(train, base, spec.seed)))
    _check_inputs(batch, form)
    _check_again(batch, train, base, spec.seed)
    plain = plain_form(form, spec, base)
    step = plain.step()
    label = f"the plain step with loss '{train.loss}'"
    loss = hooks.call(label, lambda: step.gather(batch))
    if not math.isfinite(loss):
        raise ModelError(
            what=f"loss '{train.loss}' is {loss} at the first step",
            where="train.loss",
            expected="a finite number",
            got=str(loss),
            cause=_not_finite(batch),
            remedy="look at the data's values and at logarithms and divisions in the loss",
        )
    _check_gradients(step.parameters(), spec)
    again = hooks.call(label, lambda: plain.step().gather(batch))
    if abs(again - loss) > RANDOM * max(abs(loss), 1e-12):
        raise ModelError(
            what="the plain step gives another loss when it is taken again",
            where=spec.model.reference,
            expected="the same from the same weights, batch and torch seed",
            got=f"{loss:.6g}, then {again:.6g}",
            cause="the model or the loss draws random numbers outside torch, or remembers its "
            "last call",
            remedy="draw from torch's generator: what a pass changes can't be told from chance "
            "otherwise",
        )
    return training_hash(train, base, batch)


def training_hash(train: Train, base: Path, batch: Batch) -> str:
    """A hash of the first batch, and of the source of the loss and of the batches."""
    digest = hashlib.sha256()
    for name, tensor in batch.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(data.numpy().tobytes())
    return key_of(digest.hexdigest(), train.model_dump(mode="json"), *hook_hashes(train, base))


def _check_again(batch: Batch, train: Train, base: Path, seed: int) -> None:
    """Every process reads the data by itself, and must see the same batches.

    Raises:
        DataError: another iteration gives another first batch.
    """
    again = next(iter(Batches(train, base, seed)))
    for name, tensor in batch.items():
        if name in again and torch.equal(tensor.nan_to_num(), again[name].nan_to_num()):
            continue
        raise DataError(
            what=f"train.batches '{train.batches}' gives other batches when it is started again",
            where="train.batches",
            expected="the same batches in every process and every run",
            got=f"another '{name}' in the first batch",
            remedy="seed its random numbers; give a function that starts anew, not an iterator "
            "that is used up",
        )


def _check_inputs(batch: Batch, form: Eager) -> None:
    for name, one in form.signature.tensors.items():
        if name not in batch:
            continue  # the step says so, with near names
        tensor = batch[name]
        fits = tensor.ndim == len(one.shape) and all(
            not isinstance(size, int) or size == found
            for size, found in zip(one.shape[1:], tensor.shape[1:], strict=True)
        )
        if tensor.dtype != torch_dtype(one.dtype) or not fits:
            raise DataError(
                what=f"entry '{name}' of train.batches is not what inputs.{name} says",
                where="train.batches",
                expected=f"{one.dtype} of shape {one.shape}",
                got=f"{tensor.dtype} of shape {list(tensor.shape)}",
            )


def _check_gradients(parameters: dict[str, torch.nn.Parameter], spec: Spec) -> None:
    without = [name for name, one in parameters.items() if one.grad is None]
    if without:
        shown = ", ".join(without[:SHOWN]) + (", …" if len(without) > SHOWN else "")
        raise ModelError(
            what=f"{len(without)} parameters get no gradient: {shown}",
            where=spec.model.reference,
            expected="a loss that depends on every parameter that is trained",
            remedy="remove them, or set requires_grad=False on them",
        )
    for name, one in parameters.items():
        assert one.grad is not None
        if not bool(one.grad.isfinite().all()):
            raise ModelError(
                what=f"the gradient of '{name}' is not finite at the first step",
                where=spec.model.reference,
                remedy="look at divisions, roots and logarithms of zero",
            )


def _not_finite(batch: Batch) -> str | None:
    for name, tensor in batch.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"entry '{name}' of the first batch holds NaN or infinity"
    return None
