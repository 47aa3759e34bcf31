"""The shapes that a TensorRT engine is built for."""

from __future__ import annotations

from megacompile.models import Signature, examples

Shape = tuple[int, ...]


def profile_of(signature: Signature) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Every input's smallest, typical and largest shape: the spec's."""
    low = examples.sizes(signature, "min")
    typical = examples.sizes(signature, "typical")
    high = examples.sizes(signature, "max")
    found = {}
    for name, tensor in signature.tensors.items():
        shape = tensor.shape
        found[name] = (_concrete(shape, low), _concrete(shape, typical), _concrete(shape, high))
    return found


def _concrete(shape: list[str | int], sizes: dict[str, int]) -> Shape:
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)
