"""A module captured as a trainable graph, whose outputs are the model's and its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from megacompile.models import Eager, Exported, Feeds, Signature, take_apart, to_torch
from megacompile.models.torchmodules import Flat
from megacompile.plan import PassContext
from megacompile_passes.convert.export import Export
from megacompile_passes.graph.fold_batchnorm.exported import FoldBatchNormExported
from megacompile_passes.precision.quantize.exported_sites import WEIGHTED
from megacompile_passes.programs.nodes import operator_name
from megacompile_passes.recover.hidden_states import kept_outputs
from megacompile_passes.recover.students import EagerAnswers

PREFIX = "module."  # of a captured module's names


def captured(
    watched: EagerAnswers, ctx: PassContext
) -> tuple[torch.fx.GraphModule, Exported, list[str]]:
    """The module as a trainable graph whose outputs are the model's and then its hidden states;
    the program it came from; and the module of each hidden state."""
    with_hidden = Watched(watched.model, list(watched.hidden))
    structure, found = take_apart(with_hidden.call(ctx.examples("typical")))
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in found.values()]
    with_hidden.signature = watched.model.signature.with_outputs(list(found), structure, dtypes)
    exported = Export().run(with_hidden, ctx).model
    folded = FoldBatchNormExported().run(exported, ctx).model
    module: Any = folded.program.module(check_guards=False)
    _make_trainable(module, watched.module)
    return module, folded, with_hidden.order


def _make_trainable(module: torch.fx.GraphModule, original: nn.Module) -> None:
    """Folding leaves weights without gradients, and biases in buffers: train them as before."""
    wanted = {f"{PREFIX}{name}": p.requires_grad for name, p in original.named_parameters()}
    if not any(wanted.values()):
        wanted = {}
    for node in module.graph.nodes:
        bias: Any = node.args[2] if len(node.args) > 2 and operator_name(node) in WEIGHTED else None
        target = str(getattr(bias, "target", ""))
        if getattr(bias, "op", "") == "get_attr" and target in dict(module.named_buffers()):
            path, _, name = target.rpartition(".")
            owner = module.get_submodule(path)
            value = getattr(owner, name)
            delattr(owner, name)
            owner.register_parameter(name, nn.Parameter(value.detach().clone()))
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(wanted.get(name, True))


class Watched(Eager):
    """A model whose outputs are its output leaves and then the hidden states of some modules, as
    one tuple; `order` names the module of each hidden state after a call."""

    def __init__(self, model: Eager, names: Sequence[str], inner: Signature | None = None) -> None:
        super().__init__(model.module, model.signature, model.binding)
        self.names, self.inner = list(names), inner or model.signature
        self.order: list[str] = []

    def with_module(self, module: nn.Module) -> Watched:
        return Watched(Eager(module, self.signature, self.binding), self.names, self.inner)

    def call(self, feeds: Feeds) -> tuple[torch.Tensor, ...]:
        leaves = [to_torch(feeds[name]) for name in self.signature.tensors]
        with torch.no_grad():
            found: tuple[torch.Tensor, ...] = self.flat()(*leaves)
        return found

    def flat(self) -> nn.Module:
        return _FlatWatched(self)


class _FlatWatched(Flat):
    """The flat module of a watched model; paths of modules are those of any other."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched.module, watched.inner, watched.binding)
        self._names, self._order = watched.names, watched.order

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        modules = {name: self.module.get_submodule(name) for name in self._names}
        with kept_outputs(modules) as hidden:
            outputs = super().forward(*leaves)
        self._order[:] = [name for name, found in hidden.items() for _ in found]
        # Clones: an output that is also a hidden state would be merged with it.
        return (*outputs, *(one.clone() for found in hidden.values() for one in found))


def first_outputs(module: torch.fx.GraphModule, signature: Signature) -> torch.fx.GraphModule:
    """A watched graph with the model's own outputs alone; changed in place."""
    graph: Any = module.graph
    outputs = tuple(graph.output_node().args[0][: len(signature.outputs)])
    graph.output_node().args = (outputs,)
    info = graph._codegen.pytree_info
    graph._codegen.pytree_info = info._replace(out_spec=pytree.tree_structure(outputs))
    graph.eliminate_dead_code()
    module.recompile()
    return module
