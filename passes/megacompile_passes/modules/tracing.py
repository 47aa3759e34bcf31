"""What `export` and `script` share: a module of our own to trace, and sizes to trace it at."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megacompile import errors
from megacompile.errors import ModelError
from megacompile.models import Eager, Feeds, Signature

if TYPE_CHECKING:
    import torch

# A user's project may have any name, also one of ours: whole folders are compared.
OURS = (Path(__file__).parent, Path(errors.__file__).parent)
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def isolated(model: Eager) -> Eager:
    """The model with modules and buffers of its own; parameters, the bulk, are shared.

    Tracing runs hooks that assign attributes (torch.nn.utils.prune) and updates buffers; neither
    may reach the caller's module.
    """
    import torch

    memo: dict[int, Any] = {id(p): p for p in model.module.parameters()}
    for one in model.module.modules():
        for value in one.__dict__.values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    module = copy.deepcopy(model.module, memo)
    _settle_pruning(module)
    return model.with_module(module)


def _settle_pruning(module: torch.nn.Module) -> None:
    """Replace masks of torch.nn.utils.prune by masked weights: their hooks assign a plain
    attribute on every call, which no exporter captures."""
    import torch
    from torch.nn.utils.prune import BasePruningMethod

    for one in module.modules():
        for key, hook in list(one._forward_pre_hooks.items()):
            if not isinstance(hook, BasePruningMethod):
                continue
            name = hook._tensor_name
            with torch.no_grad():
                masked = hook.apply_mask(one).detach().clone()
            del one._forward_pre_hooks[key], one._parameters[f"{name}_orig"]
            del one._buffers[f"{name}_mask"]
            one.__dict__.pop(name, None)
            one.register_parameter(name, torch.nn.Parameter(masked, requires_grad=False))


def trace_sizes(signature: Signature, typical: Mapping[str, int]) -> dict[str, int]:
    """Sizes near the typical ones, no dynamic one being 1 or equal to another size.

    A traced size of 1 is taken for a broadcast, and two equal sizes for one and the same
    (pytorch/pytorch#151582, #170264).
    """
    fixed = {s for spec in signature.tensors.values() for s in spec.shape if isinstance(s, int)}
    sizes: dict[str, int] = {}
    for name, size in typical.items():
        dim = signature.dims[name]
        if dim.fixed:
            sizes[name] = size
            continue
        low = max(dim.min, 2)
        around = range(low, min(dim.max, max(size, low) + 64) + 1)
        near = [n for _, n in sorted((abs(n - size), n) for n in around)]
        taken = set(sizes.values())
        free = [n for n in near if n not in taken]
        sizes[name] = next((n for n in free if n not in fixed), (free or near or [size])[0])
    return sizes


def resized(feeds: Feeds, signature: Signature, sizes: Mapping[str, int]) -> Feeds:
    """The feeds cut, or repeated in themselves, to other sizes: values stay valid."""
    result: Feeds = {}
    for name, spec in signature.tensors.items():
        array = feeds[name]
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str) and array.shape[axis]:
                index = np.arange(sizes[size]) % array.shape[axis]
                array = np.take(array, index, axis=axis)
        result[name] = np.array(array)
    return result


def second_sizes(signature: Signature, first: Mapping[str, int]) -> dict[str, int] | None:
    """Sizes that differ from the first in every dynamic dim; None if there is no such dim."""
    sizes = dict(first)
    for name, size in first.items():
        dim = signature.dims[name]
        if not dim.fixed:
            sizes[name] = size + 1 if size < dim.max else dim.min
    return sizes if sizes != dict(first) else None


def _torch() -> Path:
    import torch

    return Path(torch.__file__).parent


def user_frame(error: BaseException) -> str | None:
    """FILE:LINE of the user's code that an error of a tracer points at."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    frames += [(file, int(line)) for file, line in FRAME.findall(str(error))]
    own = [
        f"{file}:{line}"
        for file, line in frames
        if not file.startswith("<")
        and not Path(file).is_relative_to(_torch())
        and not any(Path(file).is_relative_to(ours) for ours in OURS)
    ]
    return own[-1] if own else None


def first_line(error: BaseException) -> str:
    """The first line of a library's message, which is often a page long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def alias_root(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose storage a node's value lies in, views followed back."""
    while node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        first = node.args[0]
        if schema is None or not schema.arguments or not hasattr(first, "op"):
            break
        if schema.arguments[0].alias_info is None:
            break
        node = first  # type: ignore[assignment]
    return node


def changed_buffers(model: Eager, feeds: Feeds) -> tuple[list[str], Feeds]:
    """Buffers that one call updates, in place or by assignment, and the call's outputs.

    An assigned buffer (`self.n = self.n + 1`) leaves no trace in a captured graph.
    """
    copied = isolated(model)

    def versions() -> dict[str, tuple[int, int]]:
        return {n: (id(b), b._version) for n, b in copied.module.named_buffers()}

    held = list(copied.module.buffers())  # an address is not used again while its owner lives
    before = versions()
    outputs = copied.run(feeds)
    after = versions()
    del held
    return [name for name, one in before.items() if after.get(name) != one], outputs


def refuse_mutation(names: list[str]) -> None:
    """Artifacts have no state: an update of a buffer would be lost (pytorch/pytorch#60828).

    Raises:
        ModelError: if there is a name.
    """
    for name in names:
        raise ModelError(
            what=f"buffer '{name}' is mutated by forward",
            expected="a model whose answer depends on its inputs alone",
            remedy=f"expose '{name}' as an input and an output of forward",
        )
