"""`recover` with `quantize`: quantization-aware training by torchao's PT2E flow for x86.

The module is captured first, normalization folded, and trained as it will be lowered: with the
quantizer that `quantize` uses, its ranges kept up while the weights move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from megacompile.errors import PassError
from megacompile.models import (
    Eager,
    Exported,
    Feeds,
    quiet,
    register_quantized_operators,
    to_numpy,
    to_torch,
)
from megacompile.plan import Fact, PassContext, Result, Traits
from megacompile_passes.convert.export import Export
from megacompile_passes.graph.fold_batchnorm.exported import FoldBatchNormExported
from megacompile_passes.precision.quantize.exported import (
    STORED_AS_BYTES,
    WEIGHTED,
    count_sites,
    kept_names,
    quantizable,
)
from megacompile_passes.precision.quantize.pt2e import calibrate, own_weights, prepare
from megacompile_passes.programs.reexport import reexport, trace_feeds
from megacompile_passes.programs.surgery import operator_name
from megacompile_passes.recover.eager import (
    batch_size_of,
    copied,
    first_batches,
    lesson_of,
    metric_of,
    open_data,
    validation_of,
)
from megacompile_passes.recover.options import Recover

if TYPE_CHECKING:
    import torch

    from megacompile.models import Signature
    from megacompile_passes.recover.teaching import Answers, EagerAnswers


PREFIX = "module."  # of a captured module's names


class RecoverQuantized(Recover[Eager, Exported]):
    """Rounded in the forward pass, straight through in the backward pass; then quantized."""

    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.QUANTIZED})
    invalidates: ClassVar[frozenset[Fact]] = frozenset(
        {Fact.TRAINABLE, Fact.FLOAT32_WEIGHTS, Fact.UNQUANTIZED}
    )
    libraries: ClassVar[tuple[str, ...]] = ("torchao",)

    def is_meant(self) -> bool:
        return self.quantize is not None

    def refusal(self, traits: Traits) -> str | None:
        if traits.symmetric:
            return (
                f"x86's integers have zero points, which {traits.backend} refuses: lower it "
                "with aotinductor or torch-compile"
            )
        return super().refusal(traits)

    def run(self, model: Eager, ctx: PassContext) -> Result[Exported]:
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        from megacompile_passes.recover.loop import Recovery
        from megacompile_passes.recover.teaching import first_outputs

        choice = self.quantize
        assert choice is not None
        register_quantized_operators()
        samples = open_data(self, ctx)
        watched, notes = copied(self, model, samples, ctx)
        module, exported, names = captured(watched, ctx)
        places = quantizable(module)
        kept = kept_names(module, choice.keep, "quantize.keep", activations=True)
        own_weights(module)
        prepared = prepare(
            module,
            choice.method == "dynamic",
            choice.per_channel,
            set(kept),
            choice.bits,
            trained=True,
        )
        student = _GraphAnswers(prepared, model.signature, names)
        calibrate(prepared, (student.leaves(one) for one in first_batches(self, samples, ctx.seed)))
        lesson = lesson_of(self, model, ctx, watched.hidden)
        recovery = Recovery(
            self,
            student,
            lesson,
            samples,
            ctx,
            metric_of(ctx, student.run),
            validation_of(self, ctx, student.run),
            batch_size_of(self, samples),
            looking=lambda: _still(prepared, choice.method == "static"),
        )
        record = recovery.run()
        if record.best_step == 0:
            notes.append(f"training made no better {record.monitor} than quantizing without it")
        with quiet(), torch.no_grad():
            converted = convert_pt2e(prepared)
        sites = count_sites(converted, places, kept, choice.method)
        if not sites.changed:
            raise PassError(
                what="recover quantized nothing",
                got=f"0 of {sites.matched} operators",
                cause="; ".join(f"{s}: {why}" for s, why in sites.skipped[:5]),
                remedy="fewer names in `quantize.keep`, or leave `quantize` out",
            )
        plain = Exported(exported.program, model.signature)
        quantized = reexport(
            first_outputs(converted, model.signature), plain, trace_feeds(plain, ctx), share=True
        )
        if choice.bits == 4:
            notes.append(STORED_AS_BYTES)
        return Result(quantized, sites, [*notes, *recovery.notes], record)


class _GraphAnswers:
    """A prepared graph as a student: outputs first, then hidden states."""

    def __init__(
        self, module: torch.fx.GraphModule, signature: Signature, hidden: list[str]
    ) -> None:
        self.module: torch.nn.Module = module
        self.signature, self.hidden = signature, hidden
        self.prefix = PREFIX

    def leaves(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        from megacompile_passes.recover.teaching import inputs_of

        found = inputs_of(batch, self.signature)
        return tuple(found[name] for name in self.signature.tensors)

    def answers(self, batch: Mapping[str, torch.Tensor]) -> Answers:
        from megacompile_passes.recover.teaching import Answers

        values = self.module(*self.leaves(batch))
        count = len(self.signature.outputs)
        hidden: dict[str, list[torch.Tensor]] = {name: [] for name in self.hidden}
        for name, value in zip(self.hidden, values[count:], strict=True):
            hidden[name].append(value)
        return Answers(dict(zip(self.signature.outputs, values, strict=False)), hidden)

    def run(self, feeds: Feeds) -> Feeds:
        import torch

        with torch.no_grad():
            values = self.module(*(to_torch(feeds[name]) for name in self.signature.tensors))
        return {
            name: to_numpy(value)
            for name, value in zip(self.signature.outputs, values, strict=False)
        }


def captured(
    watched: EagerAnswers, ctx: PassContext
) -> tuple[torch.fx.GraphModule, Exported, list[str]]:
    """The module as a trainable graph whose outputs are the model's and then its hidden states;
    the program it came from; and the module of each hidden state."""
    from megacompile.models import take_apart
    from megacompile_passes.recover.teaching import Watched

    with_hidden = Watched(watched.model, list(watched.hidden))
    structure, found = take_apart(with_hidden.call(ctx.examples("typical")))
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in found.values()]
    with_hidden.signature = watched.model.signature.with_outputs(list(found), structure, dtypes)
    exported = Export().run(with_hidden, ctx).model
    folded = FoldBatchNormExported().run(exported, ctx).model
    module: Any = folded.program.module(check_guards=False)
    _make_trainable(module, watched.module)
    return module, folded, with_hidden.order


def _make_trainable(module: torch.fx.GraphModule, original: torch.nn.Module) -> None:
    """Folding leaves weights without gradients, and biases in buffers: train them as before."""
    import torch

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
            owner.register_parameter(name, torch.nn.Parameter(value.detach().clone()))
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(wanted.get(name, True))


@contextlib.contextmanager
def _still(prepared: torch.fx.GraphModule, fixed: bool) -> Iterator[None]:
    """Ranges stay as they are while the model is only looked at; those of each call (dynamic) are
    taken as ever."""
    from torchao.quantization.pt2e.fake_quantize import disable_observer, enable_observer

    if not fixed:
        yield
        return
    prepared.apply(disable_observer)
    try:
        yield
    finally:
        prepared.apply(enable_observer)
