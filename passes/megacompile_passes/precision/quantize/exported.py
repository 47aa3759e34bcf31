"""Quantize an exported program with torchao's PT2E flow for x86, or its weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from megacompile.errors import DataError, PassError
from megacompile.models import Exported, quiet, register_quantized_operators
from megacompile.plan import PassContext, Result, Sites, Traits
from megacompile_passes.precision.quantize.options import Quantize
from megacompile_passes.precision.quantize.pt2e import (
    ONE_CHANNEL,
    calibrate,
    of_one_channel,
    own_weights,
    prepare,
)
from megacompile_passes.precision.quantize.weight_only import quantize_weights
from megacompile_passes.programs.reexport import leaves_of, reexport, trace_feeds
from megacompile_passes.programs.surgery import labels, operator_name, selected

if TYPE_CHECKING:
    import torch

WEIGHTED = {
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "addmm",
}
PRODUCTS = {"matmul", "bmm", "mm", "scaled_dot_product_attention"}
STORED_AS_BYTES = "4-bit weights are stored one to a byte: x86's kernels take nothing smaller"
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


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
        notes += _sharing(model, quantized)
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
            samples = (leaves_of(model, feeds) for feeds in ctx.calibration())
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
            calibrate(prepared, iter([leaves_of(model, ctx.examples("typical"))]))
        with quiet(), torch.no_grad():
            return convert_pt2e(prepared)


def quantizable(module: torch.fx.GraphModule) -> dict[str, str]:
    """Names of the nodes that a quantizer may change, and what the report calls them."""
    return {
        n.name: _place(n)
        for n in module.graph.nodes
        if n.op == "call_function" and operator_name(n) in WEIGHTED | PRODUCTS | RECURRENT
    }


def kept_names(
    module: torch.fx.GraphModule, selectors: list[str], option: str, activations: bool
) -> dict[str, str]:
    """Nodes that stay in float, and why.

    Raises:
        PassError: a selector matches nothing.
    """
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    found = dict.fromkeys(of_one_channel(module), ONE_CHANNEL) if activations else {}
    if selectors:
        found |= {n.name: "kept by the spec" for n in selected(nodes, selectors, option)}
    return found


def _place(node: torch.fx.Node) -> str:
    """Innermost module path and node name: what the report calls a site."""
    path = labels(node)[-1]
    return node.name if path == operator_name(node) else f"{path} ({node.name})"


def count_sites(
    module: torch.fx.GraphModule, places: dict[str, str], kept: dict[str, str], method: str
) -> Sites:
    """Sites by what the converted graph holds, not by what was asked for."""
    sites = Sites("operator")
    after = {n.name: n for n in module.graph.nodes if n.op == "call_function"}
    for name, place in places.items():
        node = after.get(name)
        operator = operator_name(node) if node is not None else ""
        inputs = [] if node is None else [_is_dequantized(a) for a in node.args[:2]]
        needed = inputs[1:] if method == "weight-only" else inputs
        if inputs and all(needed) and len(inputs) == 2:
            sites.change()
        elif name in kept:
            sites.skip(place, kept[name])
        elif operator in PRODUCTS:
            sites.skip(place, "a product of two activations stays in float")
        elif operator in RECURRENT:
            sites.skip(place, "recurrent operators stay in float")
        elif method == "dynamic" and operator != "linear":
            sites.skip(place, f"no dynamic rule for {operator}")
        else:
            sites.skip(place, f"no rule for {operator or 'this operator'} with this weight")
    return sites


def _is_dequantized(value: Any) -> bool:
    """Whether a value comes from dequantize, through operators that only move elements."""
    moves = {
        "flatten",
        "view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "detach",
        "dropout",
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
    }
    while getattr(value, "op", "") == "call_function":
        name = operator_name(value)
        if name.startswith("dequantize"):
            return True
        if name not in moves:
            return False
        value = value.args[0]
    return False


def _sharing(before: Exported, after: Exported) -> list[str]:
    """Say what became of weights that several modules share."""
    signature = before.program.graph_signature
    addresses: dict[int, list[str]] = {}
    for name, value in before.program.state_dict.items():
        if name in signature.parameters or name in signature.buffers:
            addresses.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    uses = {n.name: len(n.users) for n in before.program.graph.nodes if n.op == "placeholder"}
    shared = [
        name for node, name in signature.inputs_to_parameters.items() if uses.get(node, 0) > 1
    ]
    tied = [names[0] for names in addresses.values() if len(names) > 1]
    if not (shared or tied):
        return []
    kept = sum(
        1 for name in {*shared, *tied} if any(k.endswith(name) for k in after.program.state_dict)
    )
    text = ", ".join(n.removeprefix("module.") for n in sorted({*shared, *tied})[:3])
    state = (
        "the float weight stays for its other uses, its quantized copy is separate"
        if kept
        else "its quantized form is shared too"
    )
    return [
        f"shared weights ({text}): {state}; {before.parameters()} parameters before, "
        f"{after.parameters()} after, by storage"
    ]
