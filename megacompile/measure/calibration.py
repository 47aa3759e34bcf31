"""The samples that the user's calibration hook yields, checked against the model's inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.errors import DataError, ModelError
from megacompile.models import Feeds, Signature
from megacompile.spec import Spec
from megacompile.system import hooks


def calibration_samples(spec: Spec, base: Path, signature: Signature) -> list[Feeds]:
    """The samples of the user's calibration hook, checked against the inputs.

    Raises:
        DataError: the hook raises, yields nothing, or yields something else than inputs.
    """
    source = spec.data.calibration
    if source is None:
        return []
    hook = hooks.load(source.python, base)
    label = f"data.calibration '{source.python}'"
    produced = hooks.call(label, hook, leaf=DataError) if callable(hook) else hook
    first = partial(_first, produced, source.samples)
    samples = hooks.call(label, first, leaf=DataError)
    if not samples:
        raise DataError(
            what=f"{label} is empty",
            where="data.calibration",
            expected=f"up to {source.samples} dicts of input name to array",
            remedy="return at least one sample",
        )
    return [
        _checked(sample, signature, f"sample {index} of {label}")
        for index, sample in enumerate(samples)
    ]


def _first(produced: Iterable[Any], count: int) -> list[Any]:
    return list(islice(iter(produced), count))


def _checked(sample: Any, signature: Signature, label: str) -> Feeds:
    if not isinstance(sample, Mapping):
        raise DataError(
            what=f"{label} is no dict", expected="{input name: array}", got=type(sample).__name__
        )
    try:
        feeds = signature.complete(sample)
    except ModelError as error:
        error.what = f"{label}: {error.what}"
        raise DataError(**error.fields()) from error
    for name, array in feeds.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise DataError(what=f"{label} holds NaN or infinity", where=f"input '{name}'")
    return feeds


def calibration_hash(spec: Spec, base: Path, signature: Signature) -> str | None:
    """The hash of what the calibration hook yields now, to be held against a stored one."""
    return hash_of(calibration_samples(spec, base, signature))


def hash_of(samples: list[Feeds]) -> str | None:
    """A hash of all samples, to be held against another run's; None without samples."""
    if not samples:
        return None
    digest = hashlib.sha256()
    for sample in samples:
        for name, array in sample.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
