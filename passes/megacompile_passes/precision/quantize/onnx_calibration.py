"""Calibration samples for an ONNX graph: complete, finite, and without stray outliers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from megacompile.errors import DataError
from megacompile.models import Feeds

# One entry this many times the 99.9 % quantile spreads 8 bits so thin that the rest falls on a
# few levels: the whole output becomes one value (huggingface/optimum#89).
OUTLIER_RATIO = 20.0
QUANTILE = 0.999
# Calibration keeps a margin beyond the quantile.
MARGIN = 1.5
MOST_VALUES = 10**6


def calibration_feeds(samples: Iterable[Feeds], inputs: list[str]) -> tuple[list[Feeds], list[str]]:
    """The samples cut down to the graph's inputs, outliers clipped, with remarks.

    Raises:
        DataError: no samples, an input is missing, or a value is not finite.
    """
    feeds: list[Feeds] = []
    notes: list[str] = []
    for number, sample in enumerate(samples):
        missing = [name for name in inputs if name not in sample]
        if missing:
            raise DataError(
                what=f"calibration sample {number} lacks input '{missing[0]}'",
                expected=", ".join(inputs),
                got=", ".join(sample),
            )
        kept = {name: np.asarray(sample[name]) for name in inputs}
        for name, array in kept.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(
                    what=f"calibration sample {number} has values that are not finite",
                    where=f"input '{name}'",
                    got="inf or NaN",
                )
        if kept and not any(array.any() for array in kept.values()):
            notes.append(f"calibration sample {number} is all zeros")
        feeds.append(kept)
    if not feeds:
        raise DataError(
            what="the calibration data is empty",
            expected="at least one sample",
            got="0 samples",
            remedy="let data.calibration yield samples, or use method: dynamic, which needs none",
        )
    for name in inputs:
        if feeds[0][name].dtype.kind == "f":
            notes += _clip(feeds, name)
    return feeds, notes


def _clip(feeds: list[Feeds], name: str) -> list[str]:
    """Clip an input's stray outliers in place; say which and how."""
    magnitudes = [np.abs(feed[name]).ravel() for feed in feeds]
    step = max(1, sum(m.size for m in magnitudes) // MOST_VALUES)
    typical = float(np.quantile(np.concatenate([m[::step] for m in magnitudes]), QUANTILE))
    largest = max(float(m.max(initial=0)) for m in magnitudes)
    limit = typical * MARGIN
    if typical == 0 or largest <= typical * OUTLIER_RATIO:
        return []
    guilty = [i for i, m in enumerate(magnitudes) if m.max(initial=0) > typical * OUTLIER_RATIO]
    low = min(float(feed[name].min()) for feed in feeds)
    high = max(float(feed[name].max()) for feed in feeds)
    for number in guilty:
        feeds[number] = {**feeds[number], name: np.clip(feeds[number][name], -limit, limit)}
    where = ", ".join(map(str, guilty[:5])) + (" …" if len(guilty) > 5 else "")
    return [
        f"input '{name}' ranges over [{low:.4g}, {high:.4g}] in calibration, but 99.9 % of it "
        f"stays within {typical:.4g}: sample {where} was clipped to {limit:.4g}, and larger "
        "values saturate at run time"
    ]
