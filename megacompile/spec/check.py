"""Checks between the sections of a spec, on whatever sections are valid by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from megacompile.errors import SpecError, did_you_mean
from megacompile.spec.inputs import DIM_NAME, TupleInput, leaves
from megacompile.spec.positions import Document, KeyPath
from megacompile.spec.workload import check_workload

INTEGERS = {"int64": 63, "int32": 31, "int16": 15, "int8": 7, "uint8": 8, "bool": 1}


def cross_check(
    document: Document, sections: dict[str, Any], partial: Collection[str] = ()
) -> Iterator[SpecError]:
    """Problems between sections; `sections` maps a key of the spec to its validated value.

    Sections named in `partial` hold their valid entries only. A dim that is invalid by itself
    is there as None: its name is still known.
    """
    dims = sections.get("dims")
    inputs = sections.get("inputs")
    if dims is not None:
        yield from _dim_names(document, dims)
    if inputs is not None:
        yield from _inputs(document, inputs, whole="inputs" not in partial)
    if dims is not None and inputs is not None:
        yield from _dims(document, dims, whole="inputs" not in partial)
    if dims is not None and sections.get("benchmark") is not None:
        yield from _points(document, dims, sections["benchmark"])
    training = sections.get("workload") == "training"
    if not training and "variants" in sections and "backends" in sections:
        yield from _backends(document, sections["variants"] or {}, sections["backends"])
    if dims is not None and inputs is not None and sections.get("deploy") is not None:
        yield from _batches(document, dims, inputs, sections["deploy"].triton)
    if sections.get("budget") is not None and "data" in sections:
        yield from _metric(document, sections["budget"], sections["data"])
    if sections.get("workload") is not None:
        yield from check_workload(document, sections)


def _dim_names(document: Document, dims: dict[str, Any]) -> Iterator[SpecError]:
    for name in dims:
        if not DIM_NAME.match(name):
            yield SpecError(
                what=f"dim name '{name}' is not a plain identifier",
                where=document.where(("dims", name), key=True),
                remedy="use letters, digits and _",
            )


def _metric(document: Document, budget: Any, data: Any) -> Iterator[SpecError]:
    """A limit of the metric needs one."""
    if budget.metric_drop is not None and (data is None or data.evaluation is None):
        yield SpecError(
            what="budget.metric_drop needs a metric",
            where=document.where(("budget", "metric_drop"), key=True),
            expected="data.evaluation with an `evaluate` hook",
            got="none",
            remedy="add data.evaluation or drop metric_drop",
        )


def _inputs(document: Document, inputs: dict[str, Any], whole: bool) -> Iterator[SpecError]:
    seen: set[str] = set()
    for name, tensor in leaves(inputs):
        path = _leaf_path(name, inputs)
        if name in seen:
            yield SpecError(
                what=f"input name '{name}' stands for two tensors",
                where=document.where(path),
                remedy="rename one",
            )
        seen.add(name)
        bits = INTEGERS.get(tensor.dtype)
        if tensor.range is None or bits is None:
            continue
        low, high = tensor.range
        least = 0 if tensor.dtype in ("uint8", "bool") else -(2**bits)
        if low < least or high > 2**bits - 1 or low != int(low) or high != int(high):
            yield SpecError(
                what=f"range of input '{name}' is not one of {tensor.dtype} values",
                where=document.where((*path, "range")),
                expected=f"integers from {least} to {2**bits - 1}",
                got=f"[{low:g}, {high:g}]",
            )
    if not seen and whole:
        yield SpecError(
            what="no input is a tensor",
            where=document.where(("inputs",), key=True),
            remedy="give at least one input with a shape",
        )


def _leaf_path(name: str, inputs: dict[str, Any]) -> KeyPath:
    for top, value in inputs.items():
        if name == top:
            return ("inputs", top)
        if name.startswith(f"{top}."):
            inner = "tuple" if isinstance(value, TupleInput) else "dict"
            key = name[len(top) + 1 :].split(".")[0]
            return ("inputs", top, inner, int(key) if inner == "tuple" else key)
    return ("inputs",)


def _dims(document: Document, dims: dict[str, Any], whole: bool) -> Iterator[SpecError]:
    used: set[str] = set()
    for path, size in _sizes(document.data.get("inputs"), ("inputs",)):
        used.add(size)
        if size not in dims:
            yield SpecError(
                what=f"dim '{size}' is not declared",
                where=document.where(path),
                expected="a name under `dims`, or an integer",
                got=f"'{size}'",
                remedy=did_you_mean(size, dims) if dims else f"add `{size}` under `dims`",
            )
    for name in dims:
        if name not in used and whole:
            yield SpecError(
                what=f"dim '{name}' is declared but no input uses it",
                where=document.where(("dims", name), key=True),
                remedy=did_you_mean(name, used) or "remove it",
            )


def _sizes(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every symbolic size written under `inputs`, read off the raw data: valid or not."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "shape" and isinstance(value, list):
                for axis, size in enumerate(value):
                    if isinstance(size, str):
                        yield (*path, key, axis), size
            else:
                yield from _sizes(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _sizes(value, (*path, index))


def _points(document: Document, dims: dict[str, Any], benchmark: Any) -> Iterator[SpecError]:
    for index, point in enumerate(benchmark.points or []):
        for name, size in point.items():
            path = ("benchmark", "points", index, name)
            if name not in dims:
                yield SpecError(
                    what=f"unknown dim '{name}'",
                    where=document.where(path, key=True),
                    remedy=did_you_mean(name, dims),
                )
            elif dims[name] is not None and not dims[name].min <= size <= dims[name].max:
                yield SpecError(
                    what=f"dim '{name}' is outside its declared range",
                    where=document.where(path),
                    expected=f"{dims[name].min} to {dims[name].max}",
                    got=str(size),
                )


def _batches(
    document: Document, dims: dict[str, Any], inputs: dict[str, Any], triton: Any
) -> Iterator[SpecError]:
    """Batch sizes for serving that the first axis of an input does not allow."""
    if triton is None:
        return
    wanted = [] if triton.max_batch_size == "auto" else [("max_batch_size", triton.max_batch_size)]
    if triton.preferred_batch_sizes != "auto":
        wanted += [("preferred_batch_sizes", size) for size in triton.preferred_batch_sizes]
    for name, tensor in leaves(inputs):
        first = tensor.shape[0] if tensor.shape else 1
        dim = dims.get(first) if isinstance(first, str) else None
        largest = dim.max if dim is not None else first if isinstance(first, int) else None
        for key, size in wanted:
            if largest is not None and size > largest:
                yield SpecError(
                    what=f"{key} {size} is beyond what input '{name}' takes",
                    where=document.where(("deploy", "triton", key)),
                    expected=f"at most {largest}, the most of its first axis",
                    got=str(size),
                    remedy="lower it, or raise the dim's max",
                )
                return


def _backends(document: Document, variants: dict[str, Any], common: Any) -> Iterator[SpecError]:
    if not variants and not common:
        yield SpecError(
            what="no backend is named",
            where=document.where(()),
            expected="`backends: [...]`, or `variants` with backends",
            remedy="`megacompile backends` lists them",
        )
    for name, variant in variants.items():
        if not variant.backends and not common:
            yield SpecError(
                what=f"variant '{name}' names no backend",
                where=document.where(("variants", name), key=True),
                remedy="add `backends: [...]` there or to the spec",
            )
