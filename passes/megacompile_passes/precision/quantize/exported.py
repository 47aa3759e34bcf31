"""Quantize an exported program with torchao's PT2E flow for x86, or its weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from megacompile.errors import DataError, PassError
from megacompile.models import Exported, quiet, register_quantized_operators
from megacompile.plan import PassContext, Result, Traits
from megacompile_passes.precision.quantize.exported_sites import (
    WEIGHTED,
    count_sites,
    kept_names,
    quantizable,
)
from megacompile_passes.precision.quantize.exported_ties import ties
from megacompile_passes.precision.quantize.exported_weights import quantize_weights
from megacompile_passes.precision.quantize.options import Quantize
from megacompile_passes.precision.quantize.pt2e import calibrate, prepare
from megacompile_passes.precision.quantize.pt2e_limits import own_weights
from megacompile_passes.programs.reexport import reexport
from megacompile_passes.programs.trace_inputs import leaves_of, trace_feeds

if TYPE_CHECKING:
    import torch

STORED_AS_BYTES = "4-bit weights are stored one to a byte: x86's kernels take nothing smaller"


class QuantizeExported(Quantize[Exported, Exported]):
    """int8 weights; by method uint8 activations with them."""

    libraries: ClassVar[tuple[str, ...]] = ("torchao",)

    def refusal(self, traits: Traits) -> str | None:
        if reason := super().refusal(traits):
            return reason
        symmetric = traits.symmetric if self.symmetric == "auto" else self.symmetric
        if not symmetric or self.method == "weight-only":
            return None
        return (
            "x86's integer kernels take unsigned activations with a zero point: on an exported "
            "program, symmetric activations can't be had; write symmetric: false, or quantize "
            "for a backend that takes ONNX"
        )

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        if reason := self.refusal(ctx.traits):
            raise PassError(
                what="quantize can't make activations symmetric here",
                cause=reason,
                remedy="symmetric: false",
            )
        register_quantized_operators()
        module: Any = model.program.module(check_guards=False)
        kept = kept_names(module, self.keep, "keep", self.method != "weight-only")
        places = quantizable(module)
        feeds = trace_feeds(model, ctx)
        notes: list[str] = []

        if self.method == "weight-only":
            quantize_weights(module, WEIGHTED, set(kept), self.per_channel, self.bits)
        else:
            module = self._quantize_activations(model, module, kept, ctx, notes)
        sites = count_sites(module, places, kept, self.method)
        if not sites.changed:
            raise PassError(
                what="quantize changed nothing",
                got=f"0 of {sites.matched} operators",
                cause="; ".join(f"{s}: {why}" for s, why in sites.skipped[:5]),
                remedy="another method, or fewer names in `keep`",
            )
        quantized = reexport(module, model, feeds, share=True)
        notes += ties(model, quantized)
        if self.bits == 4:
            notes.append(STORED_AS_BYTES)
        if not self.per_channel:
            notes.append(
                "one scale per weight: x86's integer kernels need one per channel, so "
                "this may run no faster"
            )
        return Result(quantized, sites, notes)

    def _quantize_activations(
        self,
        model: Exported,
        module: torch.fx.GraphModule,
        kept: dict[str, str],
        ctx: PassContext,
        notes: list[str],
    ) -> torch.fx.GraphModule:
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        own_weights(module)
        prepared = prepare(module, self.method == "dynamic", self.per_channel, set(kept), self.bits)
        if self.method == "static":
            samples = (leaves_of(model.signature, feeds) for feeds in ctx.calibration())
            count = calibrate(prepared, samples)
            if not count:
                raise DataError(
                    what="the calibration data is empty",
                    expected="at least one sample",
                    remedy="let data.calibration yield samples",
                )
            notes.append(f"calibrated on {count} samples")
        else:
            # Weights' observers see them at a run; activations are measured at every call.
            leaves = leaves_of(model.signature, ctx.examples("typical"))
            calibrate(prepared, iter([leaves]))
        with quiet(), torch.no_grad():
            return convert_pt2e(prepared)
