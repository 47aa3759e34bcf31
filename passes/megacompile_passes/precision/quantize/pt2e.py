"""torchao's PT2E steps with an x86 quantizer that honours what shall stay in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megacompile.errors import PassError
from megacompile.models import quiet
from megacompile_passes.messages import first_line

if TYPE_CHECKING:
    import torch


def prepare(
    module: torch.fx.GraphModule,
    dynamic: bool,
    per_channel: bool,
    kept: set[str],
    bits: int = 8,
    trained: bool = False,
) -> torch.fx.GraphModule:
    """Insert observers, or for training (`trained`) what also rounds; nodes whose names are in
    `kept` get none. `bits` are the weights'.

    Raises:
        PassError: torchao can't annotate the graph.
    """
    import torch
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e

    annotation = x86._X86InductorQuantizationAnnotation

    class Quantizer(x86.X86InductorQuantizer):
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            for node in model.graph.nodes:
                _name_source(node)
                # A product of a mask and a huge constant would set the range of everything
                # around it, and int8 products of elements save nothing (pytorch/executorch#20471).
                if node.name in kept or node.target is torch.ops.aten.mul.Tensor:
                    node.meta[x86.QUANT_ANNOTATION_KEY] = annotation(_annotated=True)
            return super().annotate(model)

    quantizer = Quantizer()
    quantizer.set_global(_config(dynamic, per_channel, bits, trained))
    try:
        with quiet(), torch.no_grad():
            return (prepare_qat_pt2e if trained else prepare_pt2e)(module, quantizer)
    except Exception as error:
        raise PassError(
            what="torchao's x86 quantizer can't annotate the graph",
            cause=first_line(error),
            remedy="put `simplify` before `quantize`: it fails on unused operators",
        ) from error


def _name_source(node: torch.fx.Node) -> None:
    """Tell torchao which module an operator came from.

    It groups operators by module path and stops when one module is called twice: the stack's keys
    tell calls apart (`relu`, `relu@1`), its paths don't. And it misses subclasses of Conv2d.
    """
    import torch

    stack = node.meta.get("nn_module_stack")
    if stack:
        node.meta["nn_module_stack"] = {key: (key, kind) for key, (_, kind) in stack.items()}
    if node.target is torch.ops.aten.conv2d.default:
        node.meta["source_fn_stack"] = [(node.name, torch.nn.Conv2d)]


def _config(dynamic: bool, per_channel: bool, bits: int, trained: bool) -> Any:
    import torch
    import torchao.quantization.pt2e as pt2e
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86

    config = x86.get_default_x86_inductor_quantization_config(is_qat=trained, is_dynamic=dynamic)
    weight = config.weight
    if trained:
        # The default's fused kernel rounds symmetric weights by max(-min / 8, max / 7) at 4 bits,
        # conversion by max(-min, max) / 7.5: what was trained would not be what is lowered
        # (measured: a cosine of 0.96 between them). This observer is conversion's own, and its
        # range that of the weights as they are.
        observer: Any = pt2e.MovingAverageMinMaxObserver
        if per_channel:
            observer = pt2e.MovingAveragePerChannelMinMaxObserver
        maker = pt2e.FakeQuantize.with_args(observer=observer, averaging_constant=1.0)
        weight = dataclasses.replace(weight, observer_or_fake_quant_ctr=maker)
    elif not per_channel:
        maker = pt2e.MinMaxObserver.with_args(eps=2**-12)
        weight = dataclasses.replace(weight, observer_or_fake_quant_ctr=maker)
    if not per_channel:
        weight = dataclasses.replace(weight, qscheme=torch.per_tensor_symmetric, ch_axis=None)
    if bits == 4:
        weight = dataclasses.replace(weight, quant_min=-8, quant_max=7)
    return dataclasses.replace(config, weight=weight)


def calibrate(prepared: torch.fx.GraphModule, samples: Iterator[tuple[torch.Tensor, ...]]) -> int:
    """Run all samples through the observers; how many there were."""
    import torch

    count = 0
    with torch.no_grad():
        for leaves in samples:
            prepared(*leaves)
            count += 1
    return count
