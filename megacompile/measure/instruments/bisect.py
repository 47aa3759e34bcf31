"""Which step did the damage, when only the end was looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def first_broken(steps: Sequence[T], broken: Callable[[T], bool]) -> T | None:
    """The first step whose result is broken, by bisection; None if none is.

    A fault is expected to stay once it is there; a fault that heals later may be missed.
    """
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if broken(steps[middle]):
            high = middle
        else:
            low = middle + 1
    return steps[low] if low < len(steps) else None
