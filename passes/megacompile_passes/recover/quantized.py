"""`recover` with `quantize`: quantization-aware training by torchao's PT2E flow for x86.

The module is captured first, normalization folded, and trained as it will be lowered: with the
quantizer that `quantize` uses, its ranges kept up while the weights move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from megacompile.errors import PassError
from megacompile.models import Eager, Exported, quiet, register_quantized_operators
from megacompile.plan import Fact, PassContext, Result, Sites, Traits
from megacompile_passes.precision.quantize.exported import STORED_AS_BYTES
from megacompile_passes.precision.quantize.exported_sites import (
    count_sites,
    kept_names,
    quantizable,
)
from megacompile_passes.precision.quantize.pt2e import calibrate, prepare
from megacompile_passes.precision.quantize.pt2e_limits import own_weights
from megacompile_passes.programs.reexport import reexport
from megacompile_passes.programs.trace_inputs import trace_feeds
from megacompile_passes.recover.options import Recover

if TYPE_CHECKING:
    import torch


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

        from megacompile_passes.recover.capture import PREFIX, captured, first_outputs
        from megacompile_passes.recover.data import first_batches, open_data
        from megacompile_passes.recover.preparation import copied, lesson_of, recovery_of
        from megacompile_passes.recover.students import GraphAnswers

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
        student = GraphAnswers(prepared, model.signature, names, PREFIX)
        batches = first_batches(self, samples, ctx.seed)
        calibrate(prepared, (student.leaves(batch) for batch in batches))
        lesson = lesson_of(self, model, ctx, watched.hidden)
        looking = partial(_still, prepared, choice.method == "static")
        recovery = recovery_of(self, student, lesson, samples, ctx, student.run, looking)
        record = recovery.run()
        if record.best_step == 0:
            notes.append(f"training made no better {record.monitor} than quantizing without it")
        with quiet(), torch.no_grad():
            converted = convert_pt2e(prepared)
        sites = count_sites(converted, places, kept, choice.method)
        _refuse_nothing_quantized(sites)
        plain = Exported(exported.program, model.signature)
        answering = first_outputs(converted, model.signature)
        quantized = reexport(answering, plain, trace_feeds(plain, ctx), share=True)
        if choice.bits == 4:
            notes.append(STORED_AS_BYTES)
        return Result(quantized, sites, [*notes, *recovery.state.notes], record)


def _refuse_nothing_quantized(sites: Sites) -> None:
    if not sites.changed:
        raise PassError(
            what="recover quantized nothing",
            got=f"0 of {sites.matched} operators",
            cause="; ".join(f"{s}: {why}" for s, why in sites.skipped[:5]),
            remedy="fewer names in `quantize.keep`, or leave `quantize` out",
        )


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
