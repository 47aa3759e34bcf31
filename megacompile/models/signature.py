"""What a model takes and gives, and how named leaves become the arguments of `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from megacompile.errors import ModelError, did_you_mean
from megacompile.models.structure import Structure
from megacompile.models.tensors import Array, Feeds, numpy_dtype
from megacompile.spec import (
    AnyInput,
    ConstantInput,
    DictInput,
    Dim,
    TensorInput,
    TupleInput,
    leaves,
)

_INPUTS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, AnyInput])
_DIMS: TypeAdapter[dict[str, Dim]] = TypeAdapter(dict[str, Dim])


@dataclass(frozen=True)
class Signature:
    """Inputs as the spec has them; outputs as the first run of the original showed them.

    Every form but `Eager` takes the tensor leaves in order and returns the output leaves in
    order: nesting and constants live in the signature alone. Leaves that can't be told apart
    by an engine (an input returned as output) are copied on the way out.
    """

    inputs: Mapping[str, Any]
    dims: Mapping[str, Dim]
    outputs: tuple[str, ...] = ()
    structure: Structure | None = None
    output_dtypes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The signature as plain data, for manifests."""
        return {
            "inputs": _INPUTS.dump_python(dict(self.inputs), mode="json", by_alias=True),
            "dims": _DIMS.dump_python(dict(self.dims), mode="json"),
            "outputs": list(self.outputs),
            "structure": self.structure,
            "output_dtypes": list(self.output_dtypes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Signature:
        """What `to_dict` wrote."""
        return cls(
            _INPUTS.validate_python(data["inputs"]),
            _DIMS.validate_python(data["dims"]),
            tuple(data["outputs"]),
            data["structure"],
            tuple(data["output_dtypes"]),
        )

    @property
    def tensors(self) -> dict[str, TensorInput]:
        """The tensor leaves by path name, in order: what forms but `Eager` take."""
        return dict(leaves(dict(self.inputs)))

    def with_outputs(
        self, outputs: Sequence[str], structure: Structure, dtypes: Sequence[str]
    ) -> Signature:
        """The signature with what the first run of the original showed."""
        return replace(
            self, outputs=tuple(outputs), structure=structure, output_dtypes=tuple(dtypes)
        )

    def arguments(self, tensor: Callable[[str], Any]) -> dict[str, Any]:
        """Top-level arguments by input name, with `tensor(leaf name)` at the leaves."""
        return {name: _argument(name, one, tensor) for name, one in self.inputs.items()}

    def sizes_of(self, feeds: Feeds) -> dict[str, int]:
        """The size of every dim in given feeds.

        Raises:
            ModelError: an array has another rank or size than declared, or two disagree.
        """
        sizes: dict[str, int] = {}
        for name, spec in self.tensors.items():
            if name not in feeds:
                continue
            shape = feeds[name].shape
            if len(shape) != len(spec.shape):
                raise ModelError(
                    what=f"input '{name}' has another rank than declared",
                    expected=f"{len(spec.shape)} dimensions {spec.shape}",
                    got=f"shape {list(shape)}",
                )
            for axis, (size, got) in enumerate(zip(spec.shape, shape, strict=True)):
                expected = sizes.setdefault(size, got) if isinstance(size, str) else size
                if expected != got:
                    raise ModelError(
                        what=f"input '{name}' has another size than the rest in axis {axis}",
                        expected=f"{size} = {expected}",
                        got=str(got),
                    )
        for name, got in sizes.items():
            dim = self.dims[name]
            if not dim.min <= got <= dim.max:
                raise ModelError(
                    what=f"dim '{name}' is outside what the spec declares",
                    expected=f"{dim.min} to {dim.max}",
                    got=str(got),
                    remedy=f"feed smaller pieces, or widen dims.{name} and build again",
                )
        return sizes

    def complete(self, given: Mapping[str, Any]) -> Feeds:
        """Feeds by leaf name from what a caller gave: nested values taken apart, optional
        inputs filled with their default, dtypes and sizes checked.

        Raises:
            ModelError: an input is missing, unknown, or of another dtype or size.
        """
        feeds: Feeds = {}
        known = list(self.inputs)
        for name in given:
            if name not in self.inputs and name not in self.tensors:
                raise ModelError(
                    what=f"unknown input '{name}'",
                    expected=", ".join(known),
                    remedy=did_you_mean(name, known),
                )
        for name, one in self.inputs.items():
            if name in given:
                _collect(name, one, given[name], feeds)
            elif not isinstance(one, (TensorInput, ConstantInput)):
                for leaf, _ in leaves({name: one}):
                    if leaf in given:
                        feeds[leaf] = given[leaf]
        for name, spec in self.tensors.items():
            if feeds.get(name) is None and not spec.optional:
                raise ModelError(
                    what=f"input '{name}' is missing",
                    expected=f"{spec.dtype} of shape {spec.shape}",
                )
        present = {n: _typed(n, self.tensors[n], a) for n, a in feeds.items() if a is not None}
        sizes = self.sizes_of(present)
        for name, spec in self.tensors.items():
            if name not in present:
                shape = [sizes[s] if isinstance(s, str) else s for s in spec.shape]
                present[name] = np.full(shape, spec.default, numpy_dtype(spec.dtype))
        return {name: present[name] for name in self.tensors}


def _argument(name: str, one: Any, tensor: Callable[[str], Any]) -> Any:
    if isinstance(one, ConstantInput):
        return one.value
    if isinstance(one, TupleInput):
        return tuple(_argument(f"{name}.{i}", item, tensor) for i, item in enumerate(one.items))
    if isinstance(one, DictInput):
        return {key: _argument(f"{name}.{key}", v, tensor) for key, v in one.entries.items()}
    return tensor(name)


def _collect(name: str, one: Any, value: Any, feeds: Feeds) -> None:
    if isinstance(one, ConstantInput):
        if value != one.value:
            raise ModelError(
                what=f"input '{name}' is built into the artifact as a constant",
                expected=repr(one.value),
                got=repr(value),
                remedy="build again with the other value",
            )
    elif isinstance(one, TupleInput):
        if not isinstance(value, (tuple, list)) or len(value) != len(one.items):
            raise ModelError(
                what=f"input '{name}' is a tuple of {len(one.items)}", got=type(value).__name__
            )
        for index, (item, inner) in enumerate(zip(one.items, value, strict=True)):
            _collect(f"{name}.{index}", item, inner, feeds)
    elif isinstance(one, DictInput):
        if not isinstance(value, Mapping) or set(value) != set(one.entries):
            got = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise ModelError(
                what=f"input '{name}' is a dict", got=got, expected="keys " + ", ".join(one.entries)
            )
        for key, item in one.entries.items():
            _collect(f"{name}.{key}", item, value[key], feeds)
    else:
        feeds[name] = value


def _typed(name: str, spec: TensorInput, value: Any) -> Array:
    from megacompile.models.tensors import to_numpy

    array = to_numpy(value)
    wanted = numpy_dtype(spec.dtype)
    if array.dtype == wanted:
        return array
    # Python numbers and lists have no dtype of their own; an array's dtype is meant.
    if not hasattr(value, "dtype") and np.can_cast(array.dtype, wanted, "same_kind"):
        return array.astype(wanted)
    raise ModelError(
        what=f"input '{name}' has another dtype than declared",
        expected=spec.dtype,
        got=array.dtype.name,
        remedy=f"convert it, e.g. .astype('{spec.dtype}')",
    )


def bind(forward: Callable[..., Any], inputs: Mapping[str, Any], where: str) -> Binding:
    """How named inputs become the arguments of `forward`.

    By name if all names are parameters of `forward`, else by position if none of them is.

    Raises:
        ModelError: some names match and others don't, a required parameter gets nothing, or
            there are more inputs than parameters.
    """
    parameters = list(inspect.signature(forward).parameters.values())
    open_positional = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    open_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    by_name = {p.name: p for p in named}
    matched = [name for name in inputs if name in by_name]
    forward_text = "forward(" + ", ".join(str(p) for p in parameters) + ")"

    if len(matched) < len(inputs) and matched and not open_keyword:
        wrong = next(name for name in inputs if name not in by_name)
        raise ModelError(
            what=f"input '{wrong}' is no parameter of the model's forward",
            where=where,
            expected=forward_text,
            got=f"inputs {', '.join(inputs)}",
            remedy=did_you_mean(wrong, by_name),
        )
    if matched or (open_keyword and not open_positional and not named):
        bound = {name: name for name in inputs}
        positional = frozenset(p.name for p in named if p.kind is p.POSITIONAL_ONLY)
    else:
        slots = [p for p in named if p.kind is not p.KEYWORD_ONLY]
        if len(inputs) > len(slots) and not open_positional:
            raise ModelError(
                what="the spec has more inputs than the model's forward takes",
                where=where,
                expected=forward_text,
                got=f"{len(inputs)} inputs: {', '.join(inputs)}",
            )
        bound = {name: slots[i].name if i < len(slots) else name for i, name in enumerate(inputs)}
        positional = frozenset(bound.values())
    missing = [p.name for p in named if p.default is p.empty and p.name not in bound.values()]
    if missing:
        raise ModelError(
            what=f"the model's forward needs '{missing[0]}', which the spec lacks",
            where=where,
            expected=forward_text,
            got=f"inputs {', '.join(inputs)}",
            remedy=f"add '{missing[0]}' to inputs",
        )
    return Binding(bound, positional)


@dataclass(frozen=True)
class Binding:
    """Spec input -> parameter of forward, and which parameters are passed by position."""

    names: Mapping[str, str]
    positional: frozenset[str]

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by input name as those that are passed by position and by keyword."""
        bound = {self.names[name]: value for name, value in arguments.items()}
        args = tuple(value for name, value in bound.items() if name in self.positional)
        return args, {n: value for n, value in bound.items() if n not in self.positional}
