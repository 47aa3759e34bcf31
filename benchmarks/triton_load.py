"""Load with version updates and bad requests: no good request may fail.

    python benchmarks/triton_load.py BUNDLE [--minutes 10] [--clients 8]

BUNDLE is a build of specs/minilm_triton.yaml. Clients send sentences without a pause and check
every answer; one client sends wrong requests; every half minute the bundle is exported again as a
new version. Prints what was sent and what failed, and exits 1 if a good request failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "specs"))

import minilm

import megacompile
from megacompile.deploy.triton.export import export_triton
from tests.deploy.triton.conftest import wait_ready
from tests.deploy.triton.server import Server, missing

UPDATE_SECONDS = 30.0
TEXTS = 64
# A run of several requests sums in another order than a run of one.
TOLERANCE = 0.999


class Tally:
    """What all clients saw."""

    def __init__(self) -> None:
        self.good = 0
        self.bad_refused = 0
        self.failures: list[str] = []
        self.versions: list[int] = []
        self.lock = threading.Lock()
        self.stop = threading.Event()


def good_client(port: int, number: int, vectors: dict[str, np.ndarray], tally: Tally) -> None:
    """Sentences one after the other; every answer is held against the bundle's own."""
    import tritonclient.grpc as grpc

    choose = random.Random(number)
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as connection:
        one = grpc.InferInput("text", [1, 1], "BYTES")
        while not tally.stop.is_set():
            text = choose.choice(list(vectors))
            one.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
            try:
                found = connection.infer("minilm", [one]).as_numpy("embedding")[0]
                cosine = float(found @ vectors[text])
                problem = None if cosine >= TOLERANCE else f"cosine {cosine:.4f} for '{text[:40]}'"
            except Exception as error:  # noqa: BLE001 - every failure counts
                problem = f"{type(error).__name__}: {error}"
            with tally.lock:
                tally.good += 1
                if problem:
                    tally.failures.append(problem)


def bad_client(port: int, tally: Tally) -> None:
    """Requests that must be refused: not UTF-8, two texts in one, no text, another type."""
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    wrong = [
        ("text", "BYTES", np.array([[b"\xff\xfe"]], dtype=object)),
        ("text", "BYTES", np.array([[b"a", b"b"]], dtype=object)),
        ("words", "BYTES", np.array([[b"a"]], dtype=object)),
        ("text", "INT64", np.array([[1]], dtype=np.int64)),
    ]
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as connection:
        index = 0
        while not tally.stop.wait(0.05):
            name, dtype, array = wrong[index % len(wrong)]
            index += 1
            one = grpc.InferInput(name, list(array.shape), dtype)
            one.set_data_from_numpy(array)
            try:
                connection.infer("minilm", [one])
                with tally.lock:
                    tally.failures.append(f"a wrong request was answered: {name} {dtype}")
            except InferenceServerException:
                with tally.lock:
                    tally.bad_refused += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    reason = missing()
    if reason is not None:
        sys.exit(f"no server can be started: {reason}")
    model = megacompile.load(arguments.bundle)
    texts = [query for query, _ in minilm.evaluation_pairs()[:TEXTS]]
    vectors = {text: model.leaves(minilm.tokenize([text]))["embedding"][0] for text in texts}
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        export_triton(arguments.bundle, repository, print)
        with Server(repository, Path(folder) / "work") as server:
            wait_ready(server, "minilm")
            threads = [threading.Thread(target=bad_client, args=(server.grpc, tally))]
            for number in range(arguments.clients):
                good = (server.grpc, number, vectors, tally)
                threads.append(threading.Thread(target=good_client, args=good))
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60 * arguments.minutes
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(UPDATE_SECONDS, left))
                if end - time.monotonic() > UPDATE_SECONDS:
                    found = export_triton(arguments.bundle, repository, lambda message: None)
                    tally.versions.append(found.version)
            tally.stop.set()
            for thread in threads:
                thread.join()
            alive = server.alive()
    print(f"{tally.good} good requests, {len(tally.failures)} failed")
    print(f"{tally.bad_refused} wrong requests refused, {len(tally.versions)} version updates")
    print("the server lives" if alive else "the server is dead")
    for failure in tally.failures[:10]:
        print(f"  {failure}")
    sys.exit(0 if alive and not tally.failures else 1)


if __name__ == "__main__":
    main()
