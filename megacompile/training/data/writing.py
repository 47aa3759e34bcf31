"""What `megacompile write-lmdb` does: from a reference to a database, with its progress."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megacompile.training.data.lmdb_format import Header, import_lmdb
from megacompile.training.data.lmdb_writer import check_place, write_lmdb
from megacompile.training.data.samples import is_numbered, open_source, single_samples

SECONDS = 2.0  # between two lines about a stream, whose end is unknown


def write_source(
    reference: str,
    base: Path,
    out: Path,
    listen: Callable[..., None],
    names: Sequence[str] = (),
    limit: int | None = None,
    overwrite: bool = False,
) -> Header:
    """Write the samples of a reference into an LMDB database.

    `names` names the members of samples that are tuples or chooses entries of dicts; `limit` is
    the most samples that are taken.

    Raises:
        DataError: the source or a sample can't be used, or `out` can't be written.
        SpecError: no such hook.
    """
    import_lmdb()
    check_place(out, overwrite)  # before the source is imported, which takes long
    label = f"'{reference}'"
    listen("say", message=f"writing {reference} to {out}")
    source = open_source(reference, base, label)
    known = len(source) if is_numbered(source) else limit
    total = known if limit is None or known is None else min(known, limit)
    samples = itertools.islice(single_samples(source, label, names), limit)
    return write_lmdb(samples, out, overwrite=overwrite, told=_teller(listen, str(out), total))


def _teller(listen: Callable[..., None], name: str, total: int | None) -> Callable[[int], None]:
    start = last = time.monotonic()

    def told(number: int) -> None:
        nonlocal last
        now = time.monotonic()
        rate: dict[str, Any] = {"note": f"{number / max(now - start, 1e-9):,.0f} samples/s"}
        if total is not None:
            listen("bar", candidate=name, done=number, total=total, **rate)
        elif now - last > SECONDS:
            last = now
            listen("step", candidate=name, step=f"{number:,} samples, {rate['note']}")

    return told
