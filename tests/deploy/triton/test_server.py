"""Against the real server: right answers, versions, faults, batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.deploy.triton.export import export_triton
from tests.deploy.triton.bundles import write
from tests.deploy.triton.conftest import HELPER, NET, STEPS, World, spec, wait_ready
from tests.deploy.triton.server import Server, missing
from tests.field import world

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"{missing()}")
Arrays = dict[str, np.ndarray[Any, Any]]
TRITON = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}


def ask(
    server: Server,
    model: str,
    feeds: Arrays,
    outputs: list[str],
    protocol: str = "http",
    version: str = "",
) -> Arrays:
    """One request over HTTP or gRPC."""
    import tritonclient.grpc as grpc
    import tritonclient.http as http

    library: Any = http if protocol == "http" else grpc
    port = server.http if protocol == "http" else server.grpc
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    inputs = []
    for name, array in feeds.items():
        one = library.InferInput(name, list(array.shape), TRITON[array.dtype.name])
        one.set_data_from_numpy(array)
        inputs.append(one)
    wanted = [library.InferRequestedOutput(name) for name in outputs]
    answer = client.infer(model, inputs, outputs=wanted, model_version=version)
    client.close()
    return {name: answer.as_numpy(name) for name in outputs}


def check(world_: World, found: Arrays, x: np.ndarray[Any, Any]) -> None:
    expected = world_.model.leaves({"x": x})
    for name, array in expected.items():
        # A number per sample comes back as [batch, 1]: Triton knows no tensor without sizes.
        array = array if array.ndim > 1 else array[:, None]
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("batch", "rows"), [(1, 4), (3, 7), (8, 16)])
def test_answers_are_the_bundles_own(
    served: tuple[Server, World, Path], protocol: str, batch: int, rows: int
) -> None:
    server, net, _ = served
    x = net.feeds(batch, rows, seed=batch)
    check(net, ask(server, "net", {"x": x}, ["y", "total"], protocol), x)


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({"x": np.zeros((1, 17, 64), np.float32)}, "rows"),
        ({"x": np.zeros((1, 4, 63), np.float32)}, "63"),
        ({"x": np.zeros((9, 4, 64), np.float32)}, "batch-size must be <= 8"),
        ({"x": np.zeros((1, 4, 64), np.int64)}, "FP32"),
        ({"z": np.zeros((1, 4, 64), np.float32)}, "z"),
    ],
)
def test_a_wrong_request_gets_an_error_and_the_server_lives(
    served: tuple[Server, World, Path], feeds: Arrays, says: str
) -> None:
    from tritonclient.utils import InferenceServerException

    server, net, _ = served
    with pytest.raises(InferenceServerException, match=says):
        ask(server, "net", feeds, ["y"])
    x = net.feeds()
    check(net, ask(server, "net", {"x": x}, ["y", "total"]), x)
    assert server.alive()


def test_a_faulty_request_harms_no_other_of_its_batch(served: tuple[Server, World, Path]) -> None:
    """Good and bad requests at the same time: those of one shape share a run."""
    from tritonclient.utils import InferenceServerException

    server, net, _ = served

    def one(index: int) -> bool:
        x = net.feeds(1, 17 if index % 3 == 0 else 5, seed=index)
        try:
            check(net, ask(server, "net", {"x": x}, ["y", "total"]), x)
        except InferenceServerException:
            return index % 3 == 0
        return index % 3 != 0

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(36)))


def test_dynamic_batching_batches(served: tuple[Server, World, Path], tmp_path: Path) -> None:
    """Eight clients at once, and a delay that no scheduling of theirs exceeds: the server's own
    counters say that most requests shared a run."""
    server, net, repository = served
    world.write(tmp_path, {"model.py": NET})
    data = spec(
        name="patient",
        deploy={"triton": {"preferred_batch_sizes": [8], "max_queue_delay_us": 200_000}},
    )
    export_triton(write(tmp_path, data), repository, lambda message: None)
    wait_ready(server, "patient")
    before = _counts(server, "patient")
    _together(lambda index: ask(server, "patient", {"x": net.feeds(seed=index)}, ["y"]), 8, 6)
    inferences, executions = (
        b - a for a, b in zip(before, _counts(server, "patient"), strict=True)
    )
    assert inferences == 48
    assert executions <= 0.5 * inferences


def _counts(server: Server, model: str) -> tuple[float, float]:
    return (
        server.metric("nv_inference_count", model),
        server.metric("nv_inference_exec_count", model),
    )


def _together(call: Callable[[int], Any], threads: int, each: int) -> None:
    """The same call from several threads that start at once."""
    barrier = threading.Barrier(threads)

    def work(number: int) -> None:
        barrier.wait()
        for index in range(each):
            call(number * each + index)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def test_a_new_version_is_picked_up_without_losing_a_request(
    served: tuple[Server, World, Path], tmp_path: Path
) -> None:
    """Requests run all the while; the answers are the old version's or the new one's."""
    server, net, repository = served
    other = World(tmp_path, write(_other(tmp_path), spec()), None)
    import megacompile

    other.model = megacompile.load(other.bundle)
    x = net.feeds(seed=3)
    old, new = (one.model.leaves({"x": x})["y"] for one in (net, other))
    assert not np.allclose(old, new, atol=1e-3)
    stop, failures, seen = threading.Event(), [], []

    def client() -> None:
        while not stop.is_set():
            try:
                found = ask(server, "net", {"x": x}, ["y"])["y"]
                which = "new" if np.allclose(found, new, atol=1e-4) else "old"
                assert which == "new" or np.allclose(found, old, atol=1e-4)
                seen.append(which)
            except Exception as error:  # noqa: BLE001 - every failure counts
                failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for one in threads:
        one.start()
    exported = export_triton(other.bundle, repository, lambda message: None)
    wait_ready(server, "net", str(exported.version))
    end = time.monotonic() + 30
    while (not seen or seen[-1] != "new") and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    stop.set()
    for one in threads:
        one.join()
    assert failures == []
    assert "old" in seen
    assert seen[-1] == "new"
    # Put the first model back as the newest version: other tests ask for its answers.
    exported = export_triton(net.bundle, repository, lambda message: None)
    wait_ready(server, "net", str(exported.version))


def _other(folder: Path) -> Path:
    world.write(folder, {"model.py": NET.replace("manual_seed(0)", "manual_seed(1)")})
    return folder


def test_an_ensemble_takes_text_and_gives_labels(
    served: tuple[Server, World, Path], tmp_path: Path
) -> None:
    """Before and after the model a Python step of the user's, which imports a file beside it."""
    from tritonclient.utils import InferenceServerException

    server, net, repository = served
    world.write(tmp_path, {"model.py": NET, "steps.py": STEPS, "helper.py": HELPER})
    data = spec(
        name="reader",
        deploy={
            "triton": {
                "preferred_batch_sizes": [4],
                "max_queue_delay_us": 500,
                "preprocess": {
                    "python": "steps.py:parse",
                    "inputs": {"text": {"dtype": "string", "shape": [1]}},
                },
                "postprocess": {
                    "python": "steps.py:label",
                    "outputs": {
                        "label": {"dtype": "string", "shape": [1]},
                        "first": {"dtype": "float32", "shape": [2]},
                    },
                },
            }
        },
    )
    exported = export_triton(write(tmp_path, data), repository, lambda message: None)
    assert exported.models == ["reader_preprocess", "reader_model", "reader_postprocess", "reader"]
    for name in exported.models:
        wait_ready(server, name)
    text = np.array([[b"1 2 3"], [b"0.5"]], dtype=object)
    for protocol in ("http", "grpc"):
        found = ask(server, "reader", {"text": text}, ["label", "first"], protocol)
        x = np.stack([np.resize(np.array(row, np.float32), (4, 64)) for row in ([1, 2, 3], [0.5])])
        expected = net.model.leaves({"x": x})
        np.testing.assert_allclose(found["first"], expected["y"][:, 0, :2], atol=1e-5)
        assert [one.decode() for one in found["label"].ravel()] == [
            f"{value:.3f}" for value in expected["total"]
        ]
    with pytest.raises(InferenceServerException, match="could not convert"):
        ask(server, "reader", {"text": np.array([[b"one"]], dtype=object)}, ["first"])
    assert ask(server, "reader", {"text": text}, ["first"])["first"].shape == (2, 2)
