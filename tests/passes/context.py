"""A PassContext for tests, without a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from megacompile.errors import DataError
from megacompile.models.signature import Signature
from megacompile.models.tensors import Feeds, numpy_dtype
from megacompile.plan.passes import PassContext, Traits


def example(signature: Signature, sizes: dict[str, int], seed: int = 0) -> Feeds:
    """Random feeds of given sizes, each with a storage of its own."""
    random = np.random.default_rng(seed)
    feeds: Feeds = {}
    for name, spec in signature.tensors.items():
        shape = [sizes[s] if isinstance(s, str) else s for s in spec.shape]
        dtype = numpy_dtype(spec.dtype)
        if dtype.kind in "iub":
            low, high = spec.range or (0, 1)
            feeds[name] = random.integers(int(low), int(high) + 1, shape).astype(dtype)
        elif spec.range:
            feeds[name] = random.uniform(*spec.range, shape).astype(dtype)
        else:
            feeds[name] = random.standard_normal(shape).astype(dtype)
    return feeds


def make_context(
    tmp_path: Path,
    signature: Signature | None = None,
    calibration: Callable[[], Iterable[Feeds]] | Iterable[Feeds] | None = None,
    traits: Traits | None = None,
    seed: int = 0,
) -> PassContext:
    """A context whose work folder is new and empty at every call."""
    number = len(list(tmp_path.iterdir()))
    work = tmp_path / f"work{number}"
    work.mkdir(parents=True)

    def examples(which: str) -> Feeds:
        assert signature is not None
        sizes = {}
        for name, dim in signature.dims.items():
            odd = min(dim.max, dim.typical + 1 if dim.typical % 2 == 0 else dim.typical + 2)
            sizes[name] = odd if which == "odd" else getattr(dim, which)
        return example(signature, sizes, seed)

    def samples() -> Iterator[Feeds]:
        if calibration is None:
            raise DataError(what="the spec has no calibration data")
        yield from calibration() if callable(calibration) else calibration

    return PassContext(
        work=work,
        target_threads=2,
        seed=seed,
        traits=traits or Traits(backend="test"),
        calibration=samples,
        examples=examples,
    )
