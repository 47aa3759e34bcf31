"""A bundle's tensors as Triton's configuration describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megacompile.errors import BundleError
from megacompile.models import Signature

# Names of Triton's DataType enumeration (model_config.proto), without their prefix.
TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "string": "STRING",
}


@dataclass(frozen=True)
class Port:
    """An input or output. `shape` holds numbers, -1 where a size varies; it has no batch axis if
    the model is batched."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def triton_type(self) -> str:
        """E.g. TYPE_FP32.

        Raises:
            BundleError: Triton has no such type.
        """
        if self.dtype not in TYPES:
            raise BundleError(
                what=f"Triton has no type for tensor '{self.name}'",
                expected=", ".join(TYPES),
                got=self.dtype,
                remedy="convert it inside the model",
            )
        return f"TYPE_{TYPES[self.dtype]}"


@dataclass(frozen=True)
class Interface:
    """A model's inputs and outputs, and its batch dim: None if it takes no batches."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batch: str | None
    largest: int


def batch_dim(signature: Signature) -> str | None:
    """The dim that is the first axis of every input; None if there is none.

    A dim of one fixed size is no batch: requests could not be put together.
    """
    first = {tensor.shape[0] if tensor.shape else None for tensor in signature.tensors.values()}
    if len(first) != 1:
        return None
    (name,) = first
    if not isinstance(name, str) or signature.dims[name].fixed:
        return None
    return name


def interface(
    signature: Signature, outputs: Mapping[str, Sequence[Any]], batched: bool | None
) -> Interface:
    """What Triton is told of a model.

    Args:
        outputs: shapes of the outputs as the manifest has them: numbers, dim names, or None
            where a size varies otherwise.
        batched: True asks for batches, False forbids them, None takes them if it can.

    Raises:
        BundleError: batches are asked for and a tensor has no batch axis; it is named.
    """
    batch = batch_dim(signature)
    if batched is False:
        batch = None
    elif batch is None and batched:
        raise _unbatched(signature)
    elif batch is not None:
        odd = next((n for n, shape in outputs.items() if not shape or shape[0] != batch), None)
        if odd is not None and batched is None:
            batch = None
        elif odd is not None:
            raise BundleError(
                what=f"output '{odd}' has no batch axis, so requests can't share a run",
                expected=f"[{batch}, …]",
                got=_shown(outputs[odd]),
                remedy="write max_batch_size: 0, or let the model give that output a batch axis",
            )
    inputs = tuple(
        Port(name, one.dtype, _sizes(one.shape, signature, batch))
        for name, one in signature.tensors.items()
    )
    dtypes = dict(zip(signature.outputs, signature.output_dtypes, strict=True))
    given = tuple(
        Port(name, dtypes[name], _sizes(outputs[name], signature, batch))
        for name in signature.outputs
    )
    return Interface(inputs, given, batch, signature.dims[batch].max if batch else 0)


def _unbatched(signature: Signature) -> BundleError:
    for name, tensor in signature.tensors.items():
        size = tensor.shape[0] if tensor.shape else None
        if not isinstance(size, str) or signature.dims[size].fixed:
            return BundleError(
                what=f"input '{name}' has no batch axis that may vary, and "
                "max_batch_size asks for one",
                expected="a dim with a range as its first size",
                got=_shown(tensor.shape),
                remedy="write max_batch_size: 0, or make its first size a dim and build again",
            )
    names = ", ".join(f"{n} {_shown(t.shape)}" for n, t in signature.tensors.items())
    return BundleError(
        what="the inputs' first axes are not one batch dim",
        got=names,
        remedy="write max_batch_size: 0, or use one dim for all first axes",
    )


def _sizes(shape: Sequence[Any], signature: Signature, batch: str | None) -> tuple[int, ...]:
    """Numbers where a size is known, -1 where it varies; the batch axis is left out."""
    rest = list(shape)[1:] if batch is not None else list(shape)
    return tuple(_size(one, signature) for one in rest)


def _size(size: Any, signature: Signature) -> int:
    if size is None:
        return -1
    if isinstance(size, str):
        dim = signature.dims[size]
        return dim.min if dim.fixed else -1
    return int(size)


def _shown(shape: Sequence[Any]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
