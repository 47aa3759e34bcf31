"""Shapes of outputs in terms of the spec's dims, read off the original's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megacompile.models.comparison import InputSet
from megacompile.models.signature import Signature

Size = int | str | None


def output_shapes(signature: Signature, sets: Sequence[InputSet]) -> dict[str, list[Size]]:
    """For each output and axis: a number if it never changes, the name of the dim that it always
    equals, or None where it varies otherwise.

    The sets are of the smallest, typical, largest and odd sizes, so that what is equal in all of
    them is no coincidence.
    """
    sizes = [signature.sizes_of(one.feeds) for one in sets]
    found: dict[str, list[Size]] = {}
    for name in signature.outputs:
        shapes = [one.reference[name].shape for one in sets]
        rank = max(map(len, shapes))
        if any(len(shape) != rank for shape in shapes):
            found[name] = [None] * rank
            continue
        found[name] = [_size([shape[axis] for shape in shapes], sizes) for axis in range(rank)]
    return found


def _size(values: Sequence[int], sizes: Sequence[Mapping[str, int]]) -> Size:
    if len(set(values)) == 1:
        return values[0]
    for dim in sizes[0]:
        if all(value == one[dim] for value, one in zip(values, sizes, strict=True)):
            return dim
    return None
