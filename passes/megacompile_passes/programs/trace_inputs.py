"""What a model is traced with: sizes that stay symbolic, feeds of such sizes, torch's Dims."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from megacompile.models import Exported, Feeds, Signature, to_torch
from megacompile.plan import PassContext

if TYPE_CHECKING:
    import torch


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


def second_sizes(signature: Signature, first: Mapping[str, int]) -> dict[str, int] | None:
    """Sizes that differ from the first in every dynamic dim; None if there is no such dim."""
    sizes = dict(first)
    for name, size in first.items():
        dim = signature.dims[name]
        if not dim.fixed:
            sizes[name] = size + 1 if size < dim.max else dim.min
    return sizes if sizes != dict(first) else None


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


def trace_feeds(model: Exported, ctx: PassContext) -> Feeds:
    """Example feeds at sizes that stay symbolic when traced."""
    typical = ctx.examples("typical")
    sizes = trace_sizes(model.signature, model.signature.sizes_of(typical))
    return resized(typical, model.signature, sizes)


def leaves_of(signature: Signature, feeds: Feeds) -> tuple[torch.Tensor, ...]:
    """The feeds as positional arguments of a captured program."""
    return tuple(to_torch(feeds[name]) for name in signature.tensors)


def dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """torch's description of dynamic sizes, one dict of axis to Dim per input leaf."""
    from torch.export import Dim

    sizes = {name: size for name, size in signature.dims.items() if not size.fixed}
    dims = {name: Dim(symbol_of(name), min=s.min, max=s.max) for name, s in sizes.items()}
    shapes = [spec.shape for spec in signature.tensors.values()]
    return tuple({axis: dims[s] for axis, s in enumerate(shape) if s in dims} for shape in shapes)


def symbol_of(dim: str) -> str:
    """The name that torch knows a dim of the spec by: it must be an identifier."""
    return re.sub(r"\W", "_", dim)
