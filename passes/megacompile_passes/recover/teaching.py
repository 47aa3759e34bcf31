"""What `recover` learns from: the original's answers and hidden states, and the task's loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from megacompile.errors import DataError, ModelError, PassError, did_you_mean
from megacompile.models import Eager, Feeds, Signature, put_together, to_torch
from megacompile.models.torchmodules import Flat, output_leaves
from megacompile.plan import select
from megacompile_passes.recover.options import Distill, Task

Batch = Mapping[str, torch.Tensor]
TINY = 1e-12


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
    sizes = {
        size: batch[name].shape[axis]
        for name, one in specs.items()
        if name in batch
        for axis, size in enumerate(one.shape)
        if axis < batch[name].ndim
    }
    found = {}
    for name, one in specs.items():
        if name in batch:
            found[name] = batch[name]
            continue
        shape = [sizes[size] if isinstance(size, str) else size for size in one.shape]
        found[name] = torch.full(shape, one.default or 0, dtype=getattr(torch, one.dtype))
    return found


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
    from torch.utils import _pytree as pytree

    graph: Any = module.graph
    outputs = tuple(graph.output_node().args[0][: len(signature.outputs)])
    graph.output_node().args = (outputs,)
    info = graph._codegen.pytree_info
    graph._codegen.pytree_info = info._replace(out_spec=pytree.tree_structure(outputs))
    graph.eliminate_dead_code()
    module.recompile()
    return module


@contextlib.contextmanager
def kept_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Collect what modules return while the block runs."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in modules}

    def keeping(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None:
                found[name].append(tensor)

        return hook

    handles = [module.register_forward_hook(keeping(name)) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> torch.Tensor | None:
    """A module's output, or the first floating tensor of a nested one."""
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(value)
    return next(
        (one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()), None
    )


def hidden_modules(module: nn.Module, choice: Distill | None) -> list[str]:
    """The modules that `distill.hidden` names.

    Raises:
        PassError: a selector matches nothing.
    """
    if choice is None or not choice.hidden:
        return []
    names = [name for name, _ in module.named_modules() if name]
    return sorted(select(choice.hidden, names, "distill.hidden"))


class Lesson:
    """The loss of a batch: distillation, the task, or their weighted sum."""

    def __init__(
        self,
        signature: Signature,
        distill: Distill | None,
        task: Task | None,
        teacher: Student | None,
        task_loss: Callable[[Any, Batch], Any] | None,
    ) -> None:
        self.signature, self.distill, self.task = signature, distill, task
        self.teacher, self.task_loss = teacher, task_loss
        self._outputs: list[str] | None = None

    def losses(self, student: Student, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The batch's mean loss, and the loss of every sample (None if the task's own loss is
        all there is).

        Raises:
            DataError, PassError, ModelError: batch, outputs and options don't fit together.
        """
        answers = student.answers(batch)
        each: list[torch.Tensor] = []
        total: list[torch.Tensor] = []
        if self.distill is not None:
            assert self.teacher is not None
            with torch.no_grad():
                taught = self.teacher.answers(batch)
            each.append(self._distilled(self.distill, answers, taught, batch))
        if self.task is not None and self.task.labels is not None:
            each.append(self.task.weight * self._labelled(self.task, answers, batch))
        elif self.task is not None:
            total.append(self.task.weight * self._own(answers, batch))
        per_sample = torch.stack(each).sum(0) if each else None
        if per_sample is not None:
            total.append(per_sample.mean())
        return torch.stack(total).sum(), per_sample

    def _distilled(
        self, choice: Distill, answers: Answers, taught: Answers, batch: Batch
    ) -> torch.Tensor:
        mask = self._mask(choice, batch)
        rows = next(iter(batch.values())).shape[0]
        losses = []
        if choice.weight:
            names = self._floating(choice, taught)
            found = [
                _compared(
                    choice,
                    answers.outputs[name].float(),
                    taught.outputs[name].float(),
                    mask,
                    f"output '{name}'",
                    rows,
                )
                for name in names
            ]
            losses.append(choice.weight * torch.stack(found).mean(0))
        if taught.hidden:
            found = []
            for name, theirs in taught.hidden.items():
                mine = answers.hidden[name]
                if len(mine) != len(theirs) or not mine:
                    raise PassError(
                        what=f"'{name}' of `distill.hidden` gives no hidden state to compare",
                        expected=f"{len(theirs)} tensors, as in the original",
                        got=str(len(mine)),
                    )
                found += [
                    _relative(a.float(), b.float(), mask, f"hidden state '{name}'", rows)
                    for a, b in zip(mine, theirs, strict=True)
                ]
            losses.append(choice.hidden_weight * torch.stack(found).mean(0))
        return torch.stack(losses).sum(0)

    def _floating(self, choice: Distill, taught: Answers) -> list[str]:
        if self._outputs is None:
            floating = [n for n, one in taught.outputs.items() if one.is_floating_point()]
            chosen = select(choice.outputs, floating, "distill.outputs") if choice.outputs else None
            self._outputs = [n for n in floating if chosen is None or n in chosen]
            if not self._outputs:
                raise PassError(
                    what="the model has no floating output to learn",
                    expected="one in `distill.outputs`, or `distill.weight: 0` and `hidden`",
                    got=", ".join(taught.outputs),
                )
        return self._outputs

    def _mask(self, choice: Distill, batch: Batch) -> torch.Tensor | None:
        if choice.mask is None:
            return None
        if choice.mask not in batch:
            raise DataError(
                what=f"`distill.mask` names '{choice.mask}', which no batch has",
                got=", ".join(batch),
                remedy=did_you_mean(choice.mask, batch),
            )
        return (batch[choice.mask] != 0).float()

    def _labelled(self, choice: Task, answers: Answers, batch: Batch) -> torch.Tensor:
        assert choice.labels is not None
        if choice.labels not in batch:
            raise DataError(
                what=f"`task.labels` names '{choice.labels}', which no batch has",
                got=", ".join(batch),
                remedy=did_you_mean(choice.labels, batch),
            )
        name = choice.output or next(iter(answers.outputs))
        if name not in answers.outputs:
            raise PassError(
                what=f"`task.output` names '{name}', which is no output",
                expected=", ".join(answers.outputs),
                remedy=did_you_mean(name, answers.outputs),
            )
        if choice.output is None and len(answers.outputs) > 1:
            raise PassError(
                what="`task.labels` needs to know which output holds the logits",
                expected="task.output: one of " + ", ".join(answers.outputs),
            )
        logits, labels = answers.outputs[name].float(), batch[choice.labels].long()
        if logits.ndim != labels.ndim + 1 or logits.shape[:-1] != labels.shape:
            raise DataError(
                what=f"labels '{choice.labels}' don't fit the logits '{name}'",
                expected=f"class numbers of shape {list(logits.shape[:-1])}",
                got=f"shape {list(labels.shape)}",
            )
        if bool((labels >= logits.shape[-1]).any()) or bool((labels < 0).any()):
            raise DataError(
                what=f"labels '{choice.labels}' hold numbers that are no class",
                expected=f"0 to {logits.shape[-1] - 1}",
                got=f"{int(labels.min())} to {int(labels.max())}",
            )
        found = F.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten(),
            reduction="none",
            label_smoothing=choice.label_smoothing,
        )
        return found.reshape(labels.shape[0], -1).mean(1)

    def _own(self, answers: Answers, batch: Batch) -> torch.Tensor:
        assert self.task_loss is not None
        assert self.signature.structure is not None
        outputs = put_together(self.signature.structure, answers.outputs.__getitem__)
        found = self.task_loss(outputs, batch)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            raise ModelError(
                what="the task's loss is no scalar tensor",
                expected="a tensor with one element",
                got=type(found).__name__
                if not isinstance(found, torch.Tensor)
                else f"shape {list(found.shape)}",
                remedy="return a mean or a sum over the samples",
            )
        return found.reshape(()).float()


def _compared(
    choice: Distill,
    mine: torch.Tensor,
    theirs: torch.Tensor,
    mask: torch.Tensor | None,
    what: str,
    rows: int,
) -> torch.Tensor:
    """The loss of each sample between two answers of one shape."""
    if choice.loss == "mse":
        return _relative(mine, theirs, mask, what, rows)
    _same_shape(mine, theirs, what, rows)
    if choice.loss == "cosine":
        values = 1 - F.cosine_similarity(mine, theirs, dim=-1)
    else:
        t = choice.temperature
        values = (
            t
            * t
            * F.kl_div(
                F.log_softmax(mine / t, -1),
                F.log_softmax(theirs / t, -1),
                reduction="none",
                log_target=True,
            ).sum(-1)
        )
    return _mean(values, mask)


def _relative(
    mine: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None, what: str, rows: int
) -> torch.Tensor:
    """Squared difference over the other's mean square of the batch: free of its scale."""
    _same_shape(mine, theirs, what, rows)
    scale = _mean(theirs.square(), mask).mean().clamp(min=TINY)
    return _mean((mine - theirs).square(), mask) / scale


def _same_shape(mine: torch.Tensor, theirs: torch.Tensor, what: str, rows: int) -> None:
    if mine.shape != theirs.shape:
        raise PassError(
            what=f"{what} has another shape than the original's",
            expected=str(list(theirs.shape)),
            got=str(list(mine.shape)),
            remedy="name those that kept their shape",
        )
    if mine.ndim == 0 or mine.shape[0] != rows:
        raise PassError(
            what=f"{what} has no axis of samples first",
            expected=f"{rows} along its first axis",
            got=str(list(mine.shape)),
            remedy="name only those that have one",
        )


def _mean(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean of each sample [batch], without masked positions where the mask's axes are the
    first ones of the values."""
    if mask is None or values.ndim < mask.ndim or values.shape[: mask.ndim] != mask.shape:
        return values.reshape(values.shape[0], -1).mean(1)
    weights = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)).expand_as(values)
    weights = weights.reshape(values.shape[0], -1)
    return (values.reshape(values.shape[0], -1) * weights).sum(1) / weights.sum(1).clamp(min=1.0)
