"""One model's outputs against another's: per output, per sample, and per channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megacompile.models.tensors import Array, Feeds, as_float64

# What a dtype's rounding may cost over many layers.
COSINE_OF = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.98}
# A channel is dead when it varies a thousand times less than in the original.
DEAD_SHARE = 1e-3
MIN_VALUES = 8


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may be from the original's.

    `exact` asks for every element within float rounding, `cosine` is the least of the worst
    sample, for arithmetic in `dtype`. Without either, values must be finite and channels alive.
    """

    exact: bool = False
    cosine: float | None = None
    dtype: str = "float32"

    @classmethod
    def rounding(cls) -> Tolerance:
        """The same numbers up to float rounding."""
        return cls(exact=True)

    @classmethod
    def of(cls, dtype: str) -> Tolerance:
        """What the rounding of a dtype costs."""
        return cls(cosine=COSINE_OF.get(dtype, COSINE_OF["bfloat16"]), dtype=dtype)


@dataclass
class Comparison:
    """Worst figures over all input sets.

    `max_abs` is the largest absolute difference; `relative` divides it by the largest absolute
    value of the same output; `cosine_min` is of the worst sample (entry of axis 0).
    `failures` break any promise (shape, dtype, NaN on one side only); `dead_channels` are
    channels that vary in the original and are constant here.
    """

    max_abs: float = 0.0
    relative: float = 0.0
    cosine_min: float = 1.0
    cosine_real: float | None = None
    inputs: int = 0
    worst: str | None = None
    excess: str | None = None
    dead_channels: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def broken(self, tolerance: Tolerance) -> str | None:
        """What is outside the tolerance, in words; None if nothing is."""
        if self.failures:
            return self.failures[0]
        if self.dead_channels:
            shown = ", ".join(self.dead_channels[:4])
            return f"{len(self.dead_channels)} output channels became constant: {shown}"
        if tolerance.exact:
            return self.excess
        # Real data where there is some: rounding on noise can be worse than it ever matters.
        cosine = self.cosine_real if self.cosine_real is not None else self.cosine_min
        least = tolerance.cosine
        if least is not None and cosine < least:
            return f"cosine {cosine:.5f} of the worst sample is below {least} for {tolerance.dtype}"
        return None


@dataclass(frozen=True)
class InputSet:
    """Feeds with the original's answers. `real` data comes from the user's hook; `heavy` sets are
    several times the typical size: engines run them, steps on the way don't."""

    label: str
    feeds: Feeds
    reference: Feeds
    real: bool = False
    heavy: bool = False


def compare(sets: Sequence[InputSet], results: Sequence[Feeds]) -> Comparison:
    """Compare results with the references of the same input sets."""
    total = Comparison(inputs=len(sets))
    pooled: dict[str, list[tuple[Array, Array]]] = {}
    for one, got in zip(sets, results, strict=True):
        for name, expected in one.reference.items():
            where = f"output '{name}' on {one.label}"
            if name not in got:
                total.failures.append(f"output '{name}' is missing")
                continue
            actual = got[name]
            if actual.shape != expected.shape:
                total.failures.append(
                    f"{where}: shape {list(actual.shape)} instead of {list(expected.shape)}"
                )
            elif actual.dtype != expected.dtype:
                total.failures.append(f"{where}: {actual.dtype} instead of {expected.dtype}")
            elif expected.size:
                _compare_output(total, where, expected, actual, one.real)
                pooled.setdefault(name, []).append((expected, actual))
    for name, pairs in pooled.items():
        total.dead_channels += [f"{name}[{c}]" for c in _dead_channels(pairs)]
    return total


def _compare_output(
    total: Comparison, where: str, expected: Array, actual: Array, real: bool
) -> None:
    if not (np.issubdtype(expected.dtype, np.inexact) or expected.dtype.name == "bfloat16"):
        wrong = int((expected != actual).sum())
        if wrong and total.excess is None:
            total.excess = f"{where}: {wrong} of {expected.size} integers differ"
        share = 1 - wrong / expected.size
        _note_cosine(total, share, real)
        total.max_abs = max(total.max_abs, float(wrong > 0))
        return
    a, b = as_float64(expected), as_float64(actual)
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    strange = (np.isnan(a) != np.isnan(b)) | (np.isinf(a) != np.isinf(b))
    strange |= np.isinf(a) & np.isinf(b) & (np.sign(a) != np.sign(b))
    if strange.any():
        place = tuple(int(i) for i in np.argwhere(strange)[0])
        total.failures.append(
            f"{where}: {a[place]:g} became {b[place]:g} at {list(place)} "
            f"({int(strange.sum())} of {a.size} values are not finite on one side only)"
        )
        return
    both = finite_a & finite_b
    a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
    difference = np.abs(a - b)
    scale = float(np.abs(a).max())
    worst = float(difference.max())
    relative = worst / scale if scale else (0.0 if worst == 0 else 1.0)
    if worst > total.max_abs:
        total.max_abs = worst
    if relative >= total.relative:
        total.relative, total.worst = relative, where
    _note_cosine(total, float(_cosines(a, b).min()), real)
    allowed = _allowed(a, scale, expected.dtype)
    if total.excess is None and (difference > allowed).any():
        place = tuple(int(i) for i in np.unravel_index((difference - allowed).argmax(), a.shape))
        total.excess = (
            f"{where}: {b[place]:.7g} instead of {a[place]:.7g} at {list(place)}, "
            f"largest difference {worst:.3g}"
        )


def _note_cosine(total: Comparison, value: float, real: bool) -> None:
    total.cosine_min = min(total.cosine_min, value)
    if real:
        total.cosine_real = min(total.cosine_real if total.cosine_real is not None else 1.0, value)


def _allowed(a: Array, scale: float, dtype: np.dtype[Any]) -> Array:
    """Float rounding after many operations: part of the value, part of its channel's scale.

    A small channel beside large ones is held to its own scale, but not below a tenth of the
    tensor's, since what cancelled on the way there was larger.
    """
    unit = {"float16": 100.0, "bfloat16": 500.0}.get(dtype.name, 1.0)
    axis = channel_axis(a.ndim)
    if axis is None:
        channel: Any = scale
    else:
        others = tuple(i for i in range(a.ndim) if i != axis)
        channel = np.abs(a).max(axis=others, keepdims=True)
    result: Array = unit * (1e-4 * np.abs(a) + 2e-5 * np.maximum(channel, 0.1 * scale)) + 1e-12
    return result


def channel_axis(rank: int) -> int | None:
    """Axis 1 of images and volumes, the last axis of matrices and sequences."""
    if rank < 2:
        return None
    return 1 if rank >= 4 else rank - 1


def _cosines(a: Array, b: Array) -> Array:
    """Cosine of each sample; two zero vectors agree, a zero vector and another don't."""
    if a.ndim == 0:
        a, b = a.reshape(1), b.reshape(1)
    rows = a.shape[0] if a.ndim > 1 else 1
    a, b = a.reshape(rows, -1), b.reshape(rows, -1)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same_zero = (np.linalg.norm(a, axis=1) == 0) & (np.linalg.norm(b, axis=1) == 0)
    products = (a * b).sum(axis=1)
    cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return np.clip(np.where(same_zero, 1.0, cosines), -1.0, 1.0)


def _dead_channels(pairs: list[tuple[Array, Array]]) -> list[int]:
    axis = channel_axis(pairs[0][0].ndim)
    if axis is None or len({e.shape[axis] for e, _ in pairs}) != 1:
        return []

    def by_channel(index: int) -> Array:
        moved = [np.moveaxis(as_float64(p[index]), axis, 0) for p in pairs]
        return np.concatenate([m.reshape(m.shape[0], -1) for m in moved], axis=1)

    before, after = by_channel(0), by_channel(1)
    if before.shape[1] < MIN_VALUES:
        return []
    with np.errstate(invalid="ignore"):
        spread, left = before.std(axis=1), after.std(axis=1)
        scale = np.abs(before).max(axis=1)
        dead = (spread > 1e-6 * np.maximum(scale, 1e-30)) & (left < DEAD_SHARE * spread)
    return [int(i) for i in np.flatnonzero(dead)]
