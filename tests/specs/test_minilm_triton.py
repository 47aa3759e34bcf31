"""MiniLM behind a real Triton server: text in, embedding out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from megacompile.deploy.triton.export import export_triton
from tests.deploy.triton.bundles import write
from tests.deploy.triton.conftest import wait_ready
from tests.deploy.triton.server import Server, missing
from tests.deploy.triton.test_server import ask
from tests.field import world
from tests.specs.conftest import SPECS, load_hooks, runner

TEXTS = [
    "A dog runs over the meadow.",
    "Return a list of all keys.",
    "x",
    "Iterate over " + "very " * 60 + "long sequences.",
]


@pytest.fixture(autouse=True)
def beside_the_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPECS))


def test_texts_are_padded_to_lengths_that_requests_share() -> None:
    hooks = load_hooks("minilm_triton")
    for text in TEXTS:
        found = hooks.tokenize(np.array([[text.encode()]], dtype=object))
        length = found["input_ids"].shape[1]
        assert length in hooks.LENGTHS
        assert found["attention_mask"].sum() <= length
        assert not found["input_ids"][found["attention_mask"] == 0].any()


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=f"{missing()}")
def test_text_in_embedding_out(tmp_path: Path) -> None:
    """Real weights, one request through both steps, over HTTP and gRPC."""
    data = yaml.safe_load((SPECS / "minilm_triton.yaml").read_text())
    data = {k: v for k, v in data.items() if k not in ("variants", "budget", "data")}
    data |= {"backends": ["onnxruntime"], "benchmark": {"baselines": ["eager"]}}
    world.write(
        tmp_path, {name: (SPECS / name).read_text() for name in ("minilm.py", "minilm_triton.py")}
    )
    data["deploy"]["triton"] |= {"preferred_batch_sizes": [4], "max_queue_delay_us": 500}
    bundle = write(tmp_path, data)
    carried = sorted(file.name for file in (bundle / "deploy").iterdir())
    assert carried == ["minilm.py", "minilm_triton.py"]
    exported = export_triton(bundle, tmp_path / "repository", lambda message: None)
    hooks = load_hooks("minilm")
    model = runner(hooks.build())
    with Server(tmp_path / "repository", tmp_path / "work") as server:
        for name in exported.models:
            wait_ready(server, name)
        for text in TEXTS:
            expected = model(**hooks.tokenize([text]))[0]
            for protocol in ("http", "grpc"):
                feeds = {"text": np.array([[text.encode()]], dtype=object)}
                found = ask(server, "minilm", feeds, ["embedding"], protocol)["embedding"]
                assert found.shape == (1, 384)
                assert float(found[0] @ expected) > 0.9999
        several = np.array([[text.encode()] for text in TEXTS], dtype=object)
        found = ask(server, "minilm", {"text": several}, ["embedding"])["embedding"]
        assert found.shape == (4, 384)
