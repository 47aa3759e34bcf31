"""Compute an exported program in a 16-bit float, but for what the ranges say goes wrong."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from megacompile.errors import DataError, PassError
from megacompile.models import Exported, Feeds, quiet, torch_dtype
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.precision.cast.options import Cast
from megacompile_passes.precision.cast.policy import MOVES, Policy, decide, is_float32
from megacompile_passes.programs.recurrence import symbolic_recurrence
from megacompile_passes.programs.reexport import leaves_of, reexport, trace_feeds
from megacompile_passes.programs.surgery import labels, operator_name, selected

if TYPE_CHECKING:
    import torch

# A magnitude hardly grows after so many samples, and a 16-bit range is wide.
SAMPLES = 16


class CastExported(Cast[Exported, Exported]):
    """Weights are stored in 16 bit, once each; inputs and outputs keep their dtypes."""

    def run(self, model: Exported, ctx: PassContext) -> Result[Exported]:
        import torch

        dtype = torch_dtype(self.dtype)
        limit = float(torch.finfo(dtype).max)
        module = _functional(model)
        nodes = list(module.graph.nodes)
        operators = [n for n in nodes if n.op == "call_function"]
        kept = {n.name for n in selected(operators, self.keep, "keep")} if self.keep else set()
        ranges, samples = _measure(module, model, ctx)
        policy = decide(nodes, ranges, kept, limit)
        notes = [f"ranges measured on {samples} inputs", *policy.notes]
        feeds = trace_feeds(model, ctx)
        _rewrite(module, policy, dtype)
        sites = Sites("operator")
        for node in policy.computing:
            reason = policy.float32.get(node.name)
            sites.skip(_site(node), reason) if reason else sites.change()
        if not sites.changed:
            raise PassError(
                what=f"cast to {self.dtype} changed nothing",
                got=f"0 of {sites.matched} float operators",
                remedy="name fewer operators in `keep`",
            )
        return Result(reexport(module, model, feeds), sites, notes)


def _site(node: torch.fx.Node) -> str:
    path = labels(node)[-1]
    return node.name if path == operator_name(node) else f"{path} ({node.name})"


def _functional(model: Exported) -> torch.fx.GraphModule:
    """A graph of one's own without updates in place: a cast copy would swallow them."""
    program: Any = model.program
    if any(
        n.op == "call_function"
        and getattr(n.target, "_schema", None) is not None
        and n.target._schema.is_mutable
        for n in program.graph.nodes
    ):
        with quiet(), symbolic_recurrence():
            program = program.run_decompositions({})
    module = program.module(check_guards=False)
    by_name = {n.name: n for n in program.graph.nodes}
    held = {
        **program.graph_signature.inputs_to_parameters,
        **program.graph_signature.inputs_to_buffers,
        **program.graph_signature.inputs_to_lifted_tensor_constants,
    }
    values = {target: by_name[name].meta.get("val") for name, target in held.items()}
    for node in module.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = values.get(node.target)
    return module


def _measure(
    module: torch.fx.GraphModule, model: Exported, ctx: PassContext
) -> tuple[dict[str, float], int]:
    """The largest finite magnitude of every float value, over examples and calibration data."""
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
        for feeds in _inputs(ctx):
            Recorder(module).run(*leaves_of(model, feeds))
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


def _inputs(ctx: PassContext) -> Iterable[Feeds]:
    yield ctx.examples("typical")
    try:
        yield from itertools.islice(ctx.calibration(), SAMPLES)
    except DataError:
        return  # a spec may have no calibration data; examples alone tell less, and the notes say


def _rewrite(module: torch.fx.GraphModule, policy: Policy, dtype: torch.dtype) -> None:
    """Insert casts where the dtype changes; every value is cast at most once each way."""
    import torch

    graph = module.graph
    now: dict[torch.fx.Node, torch.dtype] = {}
    casts: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
    weights: dict[tuple[Any, ...], str] = {}
    computing = {n.name for n in policy.computing}

    def cast(node: torch.fx.Node, wanted: torch.dtype) -> torch.fx.Node:
        if now.get(node, wanted) == wanted:
            return node
        if (node, wanted) not in casts:
            unbounded = node.name in policy.unbounded and wanted == dtype
            with graph.inserting_after(node):
                if node.op == "get_attr":
                    made = _weight(module, node, dtype, unbounded, weights)
                else:
                    made = _converted(graph, node, wanted, unbounded)
            casts[node, wanted] = made
        return casts[node, wanted]

    for node in list(graph.nodes):
        if node.op == "output":
            node.args = torch.fx.node.map_arg(node.args, lambda n: cast(n, torch.float32))
        elif node.op != "call_function":
            if is_float32(node):
                now[node] = torch.float32
        elif operator_name(node) in MOVES:
            source = node.all_input_nodes[0] if node.all_input_nodes else None
            if source in now:
                now[node] = now[source]
        elif node.name in computing:
            wanted = torch.float32 if node.name in policy.float32 else dtype
            to_wanted = functools.partial(cast, wanted=wanted)
            node.args = torch.fx.node.map_arg(node.args, to_wanted)
            node.kwargs = torch.fx.node.map_arg(node.kwargs, to_wanted)
            now[node] = wanted
        elif is_float32(node):
            now[node] = torch.float32
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def _converted(
    graph: torch.fx.Graph, node: torch.fx.Node, dtype: torch.dtype, unbounded: bool
) -> torch.fx.Node:
    import torch

    source = node
    if unbounded:
        # A mask's huge number would become -inf, and 0 * -inf or a row of them NaN
        # (huggingface/transformers#17306).
        limit = float(torch.finfo(dtype).max)
        source = graph.call_function(torch.ops.aten.clamp.default, (node, -limit, limit))
        source.meta = dict(node.meta)
        with graph.inserting_after(source):
            made = graph.call_function(torch.ops.aten.to.dtype, (source, dtype))
    else:
        made = graph.call_function(torch.ops.aten.to.dtype, (source, dtype))
    made.meta = {k: v for k, v in node.meta.items() if k == "nn_module_stack"}
    return made


def _weight(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    dtype: torch.dtype,
    clamp: bool,
    weights: dict[tuple[Any, ...], str],
) -> torch.fx.Node:
    """A 16-bit copy of a weight; names of one storage share one copy."""
    import torch

    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    value = value.detach()
    key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride())
    if key not in weights:
        limit = float(torch.finfo(dtype).max)
        name = f"{str(node.target).replace('.', '_')}_{str(dtype).removeprefix('torch.')}"
        made = (value.clamp(-limit, limit) if clamp else value).to(dtype)
        module.register_parameter(name, torch.nn.Parameter(made, requires_grad=False))
        weights[key] = name
    return module.graph.get_attr(weights[key])
