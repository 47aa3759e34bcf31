"""Change repeated fields of a protobuf message in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def keep_only(repeated: Any, wanted: Callable[[Any], bool]) -> None:
    """Drop elements of a repeated field; the others are neither copied nor moved in memory."""
    for index in reversed(range(len(repeated))):
        if not wanted(repeated[index]):
            del repeated[index]


def replace(repeated: Any, values: Iterable[object]) -> None:
    """Set a repeated protobuf field; its old elements stay valid as long as someone has them."""
    values = list(values)
    del repeated[:]
    repeated.extend(values)
