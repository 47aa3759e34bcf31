"""Dynamic batching against none, and the automatic choice against a sweep, on a real Triton server.

    python benchmarks/triton_batching.py BUNDLE [--clients 8] [--seconds 4] [--rounds 5]

BUNDLE is a build of specs/minilm_triton.yaml. Clients send single sentences over gRPC, each waiting
for its answer before it sends the next. All settings are served by one server at the same time and
take turns, in an order shuffled every round; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "specs"))

import minilm

from megacompile.deploy.triton.export import export_triton
from megacompile.engines.manifest import MANIFEST, seal
from tests.deploy.triton.conftest import wait_ready
from tests.deploy.triton.server import Server, missing

NONE, AUTO = "none", "auto"
SIZES, DELAYS = ([], [8], [2, 4, 8]), (0, 1000, 5000)


def sweep() -> dict[str, dict[str, Any]]:
    """All pairs of preferred batch sizes and waits, by what they are called in the table."""
    found: dict[str, dict[str, Any]] = {}
    for sizes, delay in itertools.product(SIZES, DELAYS):
        label = f"{'-'.join(map(str, sizes)) or 'any'}, {delay} us"
        found[label] = {"preferred_batch_sizes": sizes, "max_queue_delay_us": delay}
    return found


def with_settings(bundle: Path, place: Path, triton: dict[str, Any]) -> Path:
    """A copy of the bundle with other settings for Triton, its hashes right."""
    shutil.copytree(bundle, place)
    spec = json.loads((place / "spec.json").read_text())
    spec["deploy"]["triton"] |= triton
    (place / "spec.json").write_text(json.dumps(spec))
    manifest = json.loads((place / MANIFEST).read_text())
    (place / MANIFEST).unlink()
    seal({k: v for k, v in manifest.items() if k not in ("files", "sha256")}, place)
    return place


@contextmanager
def serve(bundle: Path, settings: dict[str, dict[str, Any]]) -> Iterator[tuple[Server, list[str]]]:
    """One server with a model for each setting."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        names = []
        for number, (label, triton) in enumerate(settings.items()):
            name = f"setting-{number}"
            copy = with_settings(bundle, Path(folder) / name, {**triton, "model_name": name})
            found = export_triton(copy, repository, lambda message: None)
            names.append(name)
            if found.curve:
                curve = ", ".join(f"{m.batch}: {m.latency_ms:.1f} ms" for m in found.curve)
                chosen = f"preferred {found.tuning.preferred}, wait {found.tuning.delay_us} us"
                print(f"{label}: {chosen}; from {curve}")
        with Server(repository, Path(folder) / "work") as server:
            for name in names:
                wait_ready(server, name)
            yield server, names


def load(server: Server, model: str, texts: list[str], clients: int, seconds: float) -> list[float]:
    """Latencies in seconds of all requests that clients made in the given time."""
    import tritonclient.grpc as grpc

    taken: list[list[float]] = [[] for _ in range(clients)]
    barrier = threading.Barrier(clients)

    def client(number: int) -> None:
        choose = random.Random(number)
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as connection:
            one = grpc.InferInput("text", [1, 1], "BYTES")
            barrier.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                one.set_data_from_numpy(np.array([[choose.choice(texts).encode()]], dtype=object))
                start = time.perf_counter()
                connection.infer(model, [one])
                taken[number].append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [latency for one in taken for latency in one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    reason = missing()
    if reason is not None:
        sys.exit(f"no server can be started: {reason}")
    texts = [query for query, _ in minilm.evaluation_pairs()]
    settings: dict[str, dict[str, Any]] = {NONE: {"dynamic_batching": False}, AUTO: {}, **sweep()}
    labels = list(settings)
    figures: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    with serve(arguments.bundle, settings) as (server, names):
        by_label = dict(zip(labels, names, strict=True))
        for label in labels:
            load(server, by_label[label], texts, arguments.clients, 0.5)
        for number in range(arguments.rounds):
            order = random.Random(number).sample(labels, len(labels))
            for label in order:
                taken = load(server, by_label[label], texts, arguments.clients, arguments.seconds)
                throughput = len(taken) / arguments.seconds
                figures[label].append((throughput, float(np.percentile(taken, 95))))
    report(figures)


def report(figures: dict[str, list[tuple[float, float]]]) -> None:
    """Each setting against no batching, round by round; the automatic choice against the best."""
    base = figures[NONE]

    def ratios(label: str, which: int) -> float:
        pairs = zip(figures[label], base, strict=True)
        return statistics.median(one[which] / plain[which] for one, plain in pairs)

    print(f"{'setting':<16} {'requests/s':>10} {'p95 ms':>8} {'throughput':>11} {'p95':>6}")
    for label, taken in figures.items():
        rate, tail = (statistics.median(one[which] for one in taken) for which in (0, 1))
        print(
            f"{label:<16} {rate:>10.1f} {1000 * tail:>8.1f} {ratios(label, 0):>10.2f}x "
            f"{ratios(label, 1):>5.2f}x"
        )
    swept = [label for label in figures if label not in (NONE, AUTO)]
    best = max(swept, key=lambda label: ratios(label, 0))
    pairs = zip(figures[AUTO], figures[best], strict=True)
    against = statistics.median(auto[0] / one[0] for auto, one in pairs)
    print(f"automatic choice: {against:.3f} of the throughput of the sweep's best, {best}")


if __name__ == "__main__":
    main()
