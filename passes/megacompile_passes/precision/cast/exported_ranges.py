"""How large the values inside an exported program get: seen by running it in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from megacompile.models import Signature
from megacompile.plan import PassContext
from megacompile_passes.precision.cast.samples import measurement_feeds
from megacompile_passes.programs.trace_inputs import leaves_of

if TYPE_CHECKING:
    import torch


def largest_magnitudes(
    module: torch.fx.GraphModule, signature: Signature, ctx: PassContext
) -> tuple[dict[str, float], int]:
    """The largest finite magnitude of every float value, and how many inputs were tried."""
    import torch

    ranges: dict[str, float] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            # A weight is the same at every run, and most of what there is to look at.
            if n.op == "get_attr" and n.name in ranges:
                return result
            if isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel():
                ranges[n.name] = max(ranges.get(n.name, 0.0), _magnitude(result.detach()))
            return result

    count = 0
    with torch.no_grad():
        for feeds in measurement_feeds(ctx):
            Recorder(module).run(*leaves_of(signature, feeds))
            count += 1
    return ranges, count


def _magnitude(value: torch.Tensor) -> float:
    """Infinities are in both dtypes' range; only finite numbers can be lost."""
    import torch

    low, high = (float(end) for end in torch.aminmax(value))
    largest = max(-low, high)
    if math.isfinite(largest):
        return largest
    return float(torch.where(value.isfinite(), value.abs(), 0).max())
