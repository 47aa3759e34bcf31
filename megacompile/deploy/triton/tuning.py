"""Batch sizes and queue delay of dynamic batching, chosen from a measured batch curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from megacompile.models import Feeds, Signature, examples

# A larger batch is worth having when it serves at least this much more per second than the best
# smaller one: less than that is noise.
WORTH = 1.05
# A request waits for others at most this share of one request's own run: what it costs the one
# is small, and what comes meanwhile is served together.
DELAY_SHARE = 0.5
SECONDS_PER_SIZE, CALLS = 0.4, 5


@dataclass(frozen=True)
class Measurement:
    """Median latency of one call with so many samples, in ms."""

    batch: int
    latency_ms: float

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return 1000 * self.batch / self.latency_ms


@dataclass(frozen=True)
class Tuning:
    """What dynamic batching is told."""

    preferred: tuple[int, ...]
    delay_us: int


def sizes_to_measure(largest: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    found = [1]
    while found[-1] * 2 < largest:
        found.append(found[-1] * 2)
    return found if found[-1] >= largest else [*found, largest]


def measure_curve(
    run: Callable[[Feeds], Feeds], signature: Signature, batch: str, largest: int
) -> list[Measurement]:
    """Time a loaded bundle at growing batches, the other dims at their typical sizes.

    Sizes take turns, so that a slow moment of the machine meets all of them.
    """
    typical = examples.sizes(signature, "typical")
    feeds = {
        size: examples.make(signature, {**typical, batch: size})
        for size in sizes_to_measure(largest)
    }
    taken: dict[int, list[float]] = {size: [] for size in feeds}
    end = time.perf_counter() + SECONDS_PER_SIZE * len(feeds)
    for one in feeds.values():
        run(one)
    while time.perf_counter() < end or min(map(len, taken.values())) < CALLS:
        for size, one in feeds.items():
            start = time.perf_counter()
            run(one)
            taken[size].append(1000 * (time.perf_counter() - start))
    return [Measurement(size, median(times)) for size, times in taken.items()]


def choose(curve: Sequence[Measurement]) -> Tuning:
    """Sizes that each serve noticeably more than all smaller ones, and a delay.

    While an instance is busy, requests queue by themselves, and the next run takes them all; the
    delay only gathers those that come a little late. Where batches serve no more than single
    requests, none is preferred and nobody waits.
    """
    ordered = sorted(curve, key=lambda one: one.batch)
    best, preferred = ordered[0].throughput, []
    for one in ordered[1:]:
        if one.throughput >= WORTH * best:
            preferred.append(one.batch)
            best = one.throughput
    if not preferred:
        return Tuning((), 0)
    return Tuning(tuple(preferred), round(1000 * DELAY_SHARE * ordered[0].latency_ms))
