"""Inputs made up from a signature: seeded, in range, no two tensors alike."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Literal

import numpy as np

from megacompile.models.signature import Signature
from megacompile.models.tensors import Array, Feeds, numpy_dtype
from megacompile.spec import Dim, TensorInput

Which = Literal["min", "typical", "max", "odd"]


def sizes(signature: Signature, which: Which) -> dict[str, int]:
    """Sizes of all dims. `odd` is none of the others where the range allows it."""
    if which == "odd":
        return {name: odd_size(dim) for name, dim in signature.dims.items()}
    return {name: getattr(dim, which) for name, dim in signature.dims.items()}


def odd_size(dim: Dim) -> int:
    """An odd size inside the range that a spec's author would not have tried."""
    others = {dim.min, dim.typical, dim.max}
    middle = dim.min + int((min(dim.max, 4 * dim.typical) - dim.min) * 0.37)
    near = sorted(range(dim.min, min(dim.max, middle + 64) + 1), key=lambda s: abs(s - middle))
    for size in near:
        if size % 2 == 1 and size not in others and size > 1:
            return size
    return next((size for size in near if size not in others), dim.typical)


def make(signature: Signature, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """One array per tensor leaf, each with its own storage and its own random stream."""
    feeds: Feeds = {}
    for name, spec in signature.tensors.items():
        shape = [sizes[s] if isinstance(s, str) else s for s in spec.shape]
        stream = np.random.default_rng([seed, zlib.crc32(name.encode())])
        feeds[name] = _values(spec, shape, stream)
    return feeds


def _values(spec: TensorInput, shape: list[int], stream: np.random.Generator) -> Array:
    dtype = numpy_dtype(spec.dtype)
    if spec.dtype == "bool" or (np.issubdtype(dtype, np.integer) and spec.range in (None, (0, 1))):
        return _mask(shape, stream).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        low, high = spec.range or (0, 1)
        return stream.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
    if spec.range is not None:
        return stream.uniform(*spec.range, shape).astype(dtype)
    return stream.standard_normal(shape).astype(dtype)


def _mask(shape: list[int], stream: np.random.Generator) -> Array:
    """Zeros and ones as padding masks have them: each row starts with ones, the rest is zero.

    Every second row is full, so that both kinds are always there.
    """
    if not shape or 0 in shape:
        return stream.integers(0, 1, shape, endpoint=True)
    rows = shape[:-1]
    lengths = stream.integers(1, shape[-1], rows, endpoint=True)
    full = np.arange(int(np.prod(rows))).reshape(rows) % 2 == 0
    lengths = np.where(full, shape[-1], lengths)
    return (np.arange(shape[-1]) < lengths[..., None]).astype(np.int64)
