"""The inputs on which the ranges of a float32 model are measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice

from megacompile.errors import DataError
from megacompile.models import Feeds
from megacompile.plan import PassContext

# A magnitude hardly grows after so many samples, and a 16-bit range is wide.
SAMPLES = 16


def measurement_feeds(ctx: PassContext) -> Iterator[Feeds]:
    """An example, and the user's data as far as there is any."""
    yield ctx.examples("typical")
    # A spec without data is measured on the example alone, and the notes say so.
    with contextlib.suppress(DataError):
        yield from islice(ctx.calibration(), SAMPLES)
