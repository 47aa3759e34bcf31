"""Models that `recover` compares: what is trained, and what it answers to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from megacompile.errors import DataError, did_you_mean
from megacompile.models import Eager, Feeds, Signature, to_numpy, to_torch
from megacompile.models.torchmodules import output_leaves
from megacompile_passes.recover.hidden_states import kept_outputs

Batch = Mapping[str, torch.Tensor]


@dataclass
class Answers:
    """Output leaves by name, and what each named module gave, call by call."""

    outputs: dict[str, torch.Tensor]
    hidden: dict[str, list[torch.Tensor]] = field(default_factory=dict)


class Student(Protocol):
    """Something that is trained: its parameters, and its answers to a batch. `prefix` stands
    before the names that the user knows its parameters by."""

    module: nn.Module
    prefix: str

    def answers(self, batch: Batch) -> Answers: ...


class EagerAnswers:
    """A module's answers; `hidden` names the modules whose outputs are kept."""

    def __init__(self, model: Eager, hidden: Sequence[str] = ()) -> None:
        self.model, self.module, self.prefix = model, model.module, ""
        self.hidden = {name: model.module.get_submodule(name) for name in hidden}

    def answers(self, batch: Batch) -> Answers:
        """Raises DataError: the batch lacks an input."""
        signature = self.model.signature
        tensors = inputs_of(batch, signature)
        args, kwargs = self.model.binding.split(signature.arguments(tensors.__getitem__))
        with kept_outputs(self.hidden) as hidden:
            value = self.module(*args, **kwargs)
        return Answers(output_leaves(value, signature), hidden)


class GraphAnswers:
    """A graph's answers: outputs first, then hidden states; `hidden` names the module of each."""

    def __init__(
        self, module: torch.fx.GraphModule, signature: Signature, hidden: list[str], prefix: str
    ) -> None:
        self.module: nn.Module = module
        self.signature, self.hidden, self.prefix = signature, hidden, prefix

    def leaves(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The graph's arguments. Raises DataError: the batch lacks an input."""
        found = inputs_of(batch, self.signature)
        return tuple(found[name] for name in self.signature.tensors)

    def answers(self, batch: Batch) -> Answers:
        """Raises DataError: the batch lacks an input."""
        values = self.module(*self.leaves(batch))
        hidden: dict[str, list[torch.Tensor]] = {name: [] for name in self.hidden}
        count = len(self.signature.outputs)
        for name, value in zip(self.hidden, values[count:], strict=True):
            hidden[name].append(value)
        return Answers(self._outputs(values), hidden)

    def run(self, feeds: Feeds) -> Feeds:
        """The model's outputs as arrays."""
        with torch.no_grad():
            values = self.module(*(to_torch(feeds[name]) for name in self.signature.tensors))
        return {name: to_numpy(value) for name, value in self._outputs(values).items()}

    def _outputs(self, values: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(self.signature.outputs, values, strict=False))


def inputs_of(batch: Batch, signature: Signature) -> dict[str, torch.Tensor]:
    """A batch's entries for the model's inputs; an optional one left out gets its default.

    Raises:
        DataError: the batch lacks an input.
    """
    specs = signature.tensors
    lacking = [name for name, one in specs.items() if name not in batch and not one.optional]
    if lacking:
        raise DataError(
            what=f"a batch of `recover` has no entry '{lacking[0]}'",
            expected=", ".join(specs),
            got=", ".join(batch),
            remedy=did_you_mean(lacking[0], batch),
        )
    sizes: dict[str | int, int] = {}
    for name, one in specs.items():
        if name in batch:
            sizes.update(zip(one.shape, batch[name].shape, strict=False))
    found = {}
    for name, one in specs.items():
        if name in batch:
            found[name] = batch[name]
            continue
        shape = [sizes[size] if isinstance(size, str) else size for size in one.shape]
        found[name] = torch.full(shape, one.default or 0, dtype=getattr(torch, one.dtype))
    return found
