"""What the report says of a cast ONNX graph: sites, and what stays in float32."""

from __future__ import annotations

import onnx

from megacompile.plan import Sites
from megacompile_passes.onnx_graphs.operators import PRODUCT, PRODUCTS
from megacompile_passes.precision.cast.onnx_policy import Decisions


def count_sites(nodes: list[onnx.NodeProto], decisions: Decisions) -> Sites:
    """The products of all graphs, cast or with the reason why not."""
    sites = Sites(PRODUCT)
    inside = "inside a body of If, Loop or Scan, which is left alone"
    for node in nodes:
        if node.op_type not in PRODUCTS:
            continue
        if node.name in decisions.half:
            sites.change()
        else:
            sites.skip(node.name, decisions.reasons.get(node.name, inside))
    return sites


def ties(before: int, after: int) -> list[str]:
    """A remark if a tie was cut: there are more parameters than before."""
    if after <= before:
        return []
    stored = "a shared weight is stored in both precisions, as `keep` asks"
    return [f"{stored}: {before} parameters became {after}"]


def remarks(decisions: Decisions, dtype: str) -> list[str]:
    """What stays in float32 for its range, and what a CPU can't show."""
    notes = []
    large = [f"{n} ({r})" for n, r in decisions.reasons.items() if " reaches " in r]
    if large:
        notes.append(
            f"stay in float32, since {dtype} ends at 65504 and data to come may be twice "
            "as large: " + ", ".join(large[:20])
        )
    if decisions.constants:
        notes.append(
            f"constants too large or too small for {dtype}, used in float32: "
            + ", ".join(decisions.constants[:20])
        )
    if dtype == "float16":
        notes.append(
            "ONNX Runtime emulates float16 on a CPU: it computes in float32 between "
            "casts, so an overflow on a device can't show here"
        )
    return notes
