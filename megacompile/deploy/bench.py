"""A bundle on this machine: are its answers still right, and how fast is it here?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from megacompile.engines import read_manifest
from megacompile.measure import AGAIN, Contestant, Session, aa_check, percentiles
from megacompile.system import environment, thread_budget


def bench_bundle(folder: Path, seconds: float = 20.0) -> dict[str, Any]:
    """Check a bundle's samples and time it at its benchmark points, in two processes of the
    same engine: how far these differ is how far the figures can be trusted.

    Raises:
        BundleError: damaged, for other hardware, or its answers differ here.
    """
    manifest = read_manifest(folder)
    threads = thread_budget()
    common = {"bundle": str(folder.resolve()), "threads": threads}
    points = []
    with (
        tempfile.TemporaryDirectory() as logs,
        Session(common, Path(logs), threads, lambda _: None) as session,
    ):
        name = manifest["candidate"]
        for one in (name, name + AGAIN):
            loaded = session.load(Contestant(one, manifest["backend"]))
            if loaded.error is not None:
                raise loaded.error
        for number, dims in enumerate(manifest["points"]):
            session.race(dims, seconds, number)
            first, second = session.measured[name], session.measured[name + AGAIN]
            for one in (first, second):
                if one.error is not None:
                    raise one.error
            taken = percentiles(first.times[-1].latencies_ms)
            check = aa_check(first.times[-1].block_medians_ms, second.times[-1].block_medians_ms)
            point = {
                "dims": dims,
                "p50": taken.p50,
                "p95": taken.p95,
                "p99": taken.p99,
                "count": taken.count,
                "peak_memory_mb": first.memory[-1],
                "aa": {
                    "ratio": check.ratio,
                    "low": check.low,
                    "high": check.high,
                    "passed": check.passed,
                },
            }
            points.append(point)
        loaded_data = session.measured[name].loaded
    return {
        "name": manifest["name"],
        "candidate": name,
        "precision": manifest["precision"],
        "samples_cosine": loaded_data["samples_cosine"],
        "load_seconds": loaded_data["load_seconds"],
        "points": points,
        "environment": environment(threads).model_dump(),
    }


def render_bench(found: dict[str, Any]) -> str:
    """The same as text."""
    lines = [
        f"{found['name']}: {found['candidate']} ({found['precision']}) on "
        f"{found['environment']['machine']}, {found['environment']['threads']} threads",
        f"answers to the bundle's samples: cosine {found['samples_cosine']:.6f}",
        f"loaded in {found['load_seconds']:.2f} s",
    ]
    for point in found["points"]:
        at = ", ".join(f"{name}={size}" for name, size in point["dims"].items()) or "fixed size"
        aa = point["aa"]
        trust = "" if aa["passed"] else "  NOT TRUSTED: two processes of it differ"
        lines.append(
            f"{at}: p50 {point['p50']:.3f} ms, p95 {point['p95']:.3f} ms, "
            f"p99 {point['p99']:.3f} ms, {point['peak_memory_mb']:.0f} MB "
            f"(against itself {aa['ratio']:.3f}, {aa['low']:.3f} to {aa['high']:.3f}){trust}"
        )
    return "\n".join(lines)
