"""How close the winner comes to what this machine can do at best."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megacompile.builder.keys import own_hash, versions
from megacompile.measure import Ceilings, least_time
from megacompile.plan import Machine
from megacompile.report import Candidate, Ceiling
from megacompile.system import Cache, Send, Worker, key_of, machine_name, thread_environment

MEASURER = "megacompile.builder.ceiling:serve"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: measure matrix products and memory."""
    from megacompile.measure import measure_ceilings

    for request in requests:
        found = measure_ceilings(request["threads"])
        send({"event": "done", "rates": found.rates, "bandwidth": found.bandwidth})


def machine_ceilings(
    machine: Machine, cache: Cache, say: Callable[[str], None], fresh: bool = False
) -> Ceilings:
    """This machine's ceilings, measured once and kept."""
    here = (machine_name(), machine.threads, machine.isa)
    key = key_of("ceilings", own_hash(), *here, versions(["torch"]))
    entry = None if fresh else cache.get(key)
    if entry is None:
        say("measuring this machine's ceilings")
        log, threads = cache.root / "ceilings.log", thread_environment(machine.threads)
        with Worker("the ceilings", MEASURER, log, threads) as worker:
            done = worker.ask({"threads": machine.threads})
        record = {"rates": done["rates"], "bandwidth": done["bandwidth"]}

        def write(folder: Path) -> None:
            (folder / "ceilings.json").write_text(json.dumps(record))

        if fresh:
            shutil.rmtree(cache.folder(key), ignore_errors=True)
        entry = cache.put(key, record, write)
    return Ceilings(entry.record["rates"], entry.record["bandwidth"])


def ceiling_of(
    needs: Mapping[str, Any],
    winner: Candidate | None,
    machine: Machine,
    cache: Cache,
    say: Callable[[str], None],
) -> Ceiling:
    """The least time the model needs here, against the winner's median at the first point.

    `needs` holds `operations` and `bytes_moved` of one call. A share above 1 says that the
    ceilings were taken while the machine was busy: it is withheld.
    """
    measured = machine_ceilings(machine, cache, say)
    found = Ceiling(rates=measured.rates, bandwidth=measured.bandwidth)
    operations, bytes_moved = needs.get("operations"), needs.get("bytes_moved")
    if winner is None or not winner.points or operations is None:
        return found
    found.dtype = winner.precision if winner.precision in measured.rates else "float32"
    moved = (bytes_moved or 0) * BYTES[found.dtype] / 4
    found.floor_ms, found.bound = least_time(
        operations, moved, measured.rates, measured.bandwidth, found.dtype
    )
    reached = found.floor_ms / winner.points[0].latency_ms.p50
    found.reached = reached if reached <= 1 else None
    return found
