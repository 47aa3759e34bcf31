"""What this machine reaches at best, so that a latency can be held against it.

The floor is the roofline model: Williams, Waterman and Patterson, "Roofline: an insightful
visual performance model" (2009). Bandwidth is taken the way McCalpin's STREAM does (1995):
arrays of at least four times the last-level cache, best of several passes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import torch

Bound = Literal["compute", "memory"]

_SIZES: Final = (512, 1024, 2048)
_SECONDS_PER_SIZE: Final = 0.25
_REPEATS: Final = 12
# Small products end in microseconds: twelve of them can all fall into one neighbour's burst.
_LEAST_SECONDS: Final = 0.08
# A dtype below this share of float32's rate is emulated: nobody would run a model in it here.
_ABSURDLY_SLOW: Final = 0.1
_SMALLEST_ARRAY: Final = 128 * 2**20
_LARGEST_ARRAY: Final = 512 * 2**20
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")
_ALIASES: Final = {
    "fp32": "float32",
    "f32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "uint8": "int8",
    "i8": "int8",
    "u8": "int8",
}


@dataclass(frozen=True)
class Ceilings:
    """Matrix products in operations per second by dtype, and memory in bytes per second.

    A multiply-add counts as two operations. A dtype that is absent is emulated on this machine.
    """

    rates: dict[str, float]
    bandwidth: float


def measure_ceilings(threads: int) -> Ceilings:
    """Measure this machine with `threads` threads, in about five seconds.

    ValueError for less than one thread.
    """
    if threads < 1:
        raise ValueError(f"at least one thread is needed, not {threads}")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            return Ceilings(_rates(), _bandwidth())
    finally:
        torch.set_num_threads(before)


def least_time(
    operations: float,
    bytes_moved: float,
    rates: Mapping[str, float],
    bandwidth: float,
    dtype: str,
) -> tuple[float, Bound]:
    """The least time in ms for that many operations and bytes, and which of the two sets it.

    A dtype without a rate of its own gets the fastest one known, so that the floor stays a
    floor. ValueError without any rate, or for a bandwidth or rate that isn't above 0.
    """
    if not rates or bandwidth <= 0 or min(rates.values()) <= 0:
        raise ValueError(f"rates and bandwidth must be above 0: {dict(rates)}, {bandwidth}")
    rate = rates.get(_ALIASES.get(dtype, dtype), max(rates.values()))
    compute_ms, memory_ms = operations / rate * 1e3, bytes_moved / bandwidth * 1e3
    return (compute_ms, "compute") if compute_ms >= memory_ms else (memory_ms, "memory")


def _rates() -> dict[str, float]:
    """Float32 first: the others are left out when they turn out to be emulated."""
    import torch

    makers: dict[str, Callable[[int], Callable[[], object]]] = {
        "float32": lambda size: _float_product(size, torch.float32),
        "bfloat16": lambda size: _float_product(size, torch.bfloat16),
        "float16": lambda size: _float_product(size, torch.float16),
        "int8": _int8_product,
    }
    rates: dict[str, float] = {}
    for dtype, maker in makers.items():
        # Some builds have no kernel for a dtype at all: then it simply has no rate.
        with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):
            least = rates.get("float32", 0.0) * _ABSURDLY_SLOW
            rate = _best_rate(maker, least)
            if rate > least:
                rates[dtype] = rate
    return rates


def _best_rate(maker: Callable[[int], Callable[[], object]], least: float) -> float:
    """Operations per second of the size that does best; stops early when hopeless."""
    # The smallest size first: an emulated dtype would need seconds for a large one.
    best = 0.0
    for size in _SIZES:
        best = max(best, _rate(maker(size), size))
        if best <= least:
            break
    return best


def _rate(product: Callable[[], object], size: int) -> float:
    return 2.0 * size**3 / _best_seconds(product)


def _float_product(size: int, dtype: torch.dtype) -> Callable[[], object]:
    import torch

    left, right = torch.rand(size, size).to(dtype), torch.rand(size, size).to(dtype)
    out = torch.empty(size, size, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _int8_product(size: int) -> Callable[[], object]:
    """uint8 by int8 through oneDNN with prepacked weights, the way quantized models run.

    Faster than torch._int_mm, which packs the weights in every call; that is the way out where
    a build has no such operator.
    """
    import torch

    left = torch.randint(0, 255, (size, size), dtype=torch.uint8)
    right = torch.randint(-127, 127, (size, size), dtype=torch.int8)
    operators: Any = torch.ops.onednn
    scales, zeros = torch.ones(size), torch.zeros(size, dtype=torch.int64)
    try:
        packed = operators.qlinear_prepack(right, [size, size])

        def product() -> object:
            return operators.qlinear_pointwise(
                left, 0.1, 0, packed, scales, zeros, None, 1.0, 0, torch.uint8, "none", [], ""
            )

        product()
    except (AttributeError, RuntimeError, NotImplementedError):
        signed = torch.randint(-127, 127, (size, size), dtype=torch.int8)
        return lambda: torch._int_mm(signed, right)
    return product


def _bandwidth() -> float:
    """Bytes per second, the best of reading, copying and the STREAM triad.

    Reading counts because weights are only read; a write is counted once, as STREAM does.
    """
    import torch

    size = min(max(_SMALLEST_ARRAY, 4 * last_level_cache()), _LARGEST_ARRAY)
    first, second, third = (torch.ones(size // 4) for _ in range(3))
    passes: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: first.sum()),
        (2, lambda: second.copy_(first)),
        (3, lambda: torch.add(first, second, alpha=3.0, out=third)),
    ]
    return max(arrays * size / _best_seconds(run) for arrays, run in passes)


def last_level_cache(caches: Path = _CACHES) -> int:
    """Bytes of the largest cache of the first core; 0 where the system doesn't say."""
    return max(_cache_sizes(caches), default=0)


def _cache_sizes(caches: Path) -> Iterator[int]:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    for path in caches.glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in units:
            yield int(text[:-1]) * units[text[-1]]


def _best_seconds(run: Callable[[], object]) -> float:
    """The fastest of several repeats: whatever else runs on the machine can only slow one down."""
    run()
    best, repeats, begun = float("inf"), 0, time.perf_counter()
    ended = begun
    while ended - begun < (_LEAST_SECONDS if repeats >= _REPEATS else _SECONDS_PER_SIZE):
        started = time.perf_counter()
        run()
        ended = time.perf_counter()
        best, repeats = min(best, ended - started), repeats + 1
    return best
