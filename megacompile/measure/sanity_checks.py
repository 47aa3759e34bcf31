"""What would make an original unfit to be compiled and compared with.

Answers that are random, buffers or inputs that a call changes, and a default of an optional input
that doesn't mean what leaving it out means.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from megacompile.errors import ModelError
from megacompile.models import (
    Eager,
    Feeds,
    Form,
    InputSet,
    Tolerance,
    compare,
    examples,
    take_apart,
    to_numpy,
    to_torch,
)
from megacompile.spec import Spec, TensorInput
from megacompile.system import hooks


def check_repeatable(first: Feeds, second: Feeds) -> None:
    """Two runs on the same input give the same answers.

    Raises:
        ModelError: they differ by more than rounding.
    """
    found = compare([InputSet("the typical sizes", {}, first)], [second])
    broken = found.broken(Tolerance.rounding())
    if broken:
        raise ModelError(
            what="the model gives different answers to the same input",
            cause=broken,
            expected="the same numbers in two runs",
            remedy="remove randomness (dropout with training=True, torch.rand), seed it, or make "
            "the noise an input",
        )


def check_inputs_untouched(form: Form) -> None:
    """A call leaves its inputs as they were.

    Raises:
        ModelError: it writes into one of them.
    """
    if not isinstance(form, Eager):
        return
    import torch

    feeds = _typical(form)
    given = {name: to_torch(array) for name, array in feeds.items()}
    args, kwargs = form.binding.split(form.signature.arguments(given.__getitem__))
    with torch.no_grad():
        form.module(*args, **kwargs)
    for name, tensor in given.items():
        if not np.array_equal(to_numpy(tensor), feeds[name], equal_nan=tensor.is_floating_point()):
            raise ModelError(
                what=f"the model writes into its input '{name}'",
                expected="an inference that leaves its inputs alone",
                remedy=f"start forward with {name} = {name}.clone()",
            )


def changed_state(form: Form) -> str:
    """What a call changes in a model that is known to change: a buffer's name, if it is one."""
    if not isinstance(form, Eager):
        return "its state differs after it"
    from megacompile.models.torchmodules import copy_module

    module = copy_module(form.module)
    before = {n: b.detach().clone() for n, b in module.named_buffers()}
    form.with_module(module).run(_typical(form))
    changed = [n for n, b in module.named_buffers() if not bool((b == before[n]).all())]
    return f"buffer '{changed[0]}' is mutated" if changed else "an attribute changes"


def check_optional(form: Form, spec: Spec) -> None:
    """The default of an optional input means the same as leaving it out.

    Raises:
        ModelError: it doesn't.
    """
    if not isinstance(form, Eager):
        return
    for name, one in spec.inputs.items():
        if isinstance(one, TensorInput) and one.optional:
            assert one.default is not None
            _check_default(form, name, one.default, spec.seed)


def _check_default(form: Eager, name: str, default: float, seed: int) -> None:
    import torch

    feeds = _typical(form, seed)
    feeds[name] = np.full_like(feeds[name], default)
    arguments = form.signature.arguments(lambda leaf: to_torch(feeds[leaf]))
    args, kwargs = form.binding.split({k: v for k, v in arguments.items() if k != name})
    with torch.no_grad():
        forward = partial(form.module, *args, **kwargs)
        without = hooks.call(f"the model's forward without '{name}'", forward)
    found = map(to_numpy, take_apart(without)[1].values())
    leaves = dict(zip(form.signature.outputs, found, strict=True))
    left_out = InputSet(f"'{name}' left out", {}, leaves)
    broken = compare([left_out], [form.run(feeds)]).broken(Tolerance.rounding())
    if broken:
        raise ModelError(
            what=f"the default of optional input '{name}' does not mean the same as leaving it out",
            where=f"inputs.{name}.default",
            got=f"{default:g}",
            cause=broken,
            remedy="choose the neutral value (1 for a mask of ones)",
        )


def _typical(form: Form, seed: int = 0) -> Feeds:
    return examples.make(form.signature, examples.sizes(form.signature, "typical"), seed)
