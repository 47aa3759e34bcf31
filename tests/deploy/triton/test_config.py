"""What stands in a model's config.pbtxt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.deploy.triton.config import from_text, to_text
from tests.deploy.triton.exporting import FIXED, export, refused

pytest.importorskip("tritonclient", reason="tritonclient is not installed")


def test_the_configuration_agrees_with_the_signature(bundle: Path, tmp_path: Path) -> None:
    config = export(bundle, tmp_path / "repository", FIXED)
    assert (config.name, config.backend, config.max_batch_size) == ("net", "python", 8)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("x", 11, [-1, 64])]
    assert config.input[0].allow_ragged_batch
    outputs = [(o.name, list(o.dims), o.HasField("reshape")) for o in config.output]
    assert outputs == [("y", [-1, 64], False), ("total", [1], True)]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 300
    assert config.instance_group[0].count == 1
    assert config.version_policy.latest.num_versions == 1
    assert [one.batch_size for one in config.model_warmup] == [1, 2, 4]
    assert list(config.model_warmup[0].inputs["x"].dims) == [4, 64]
    data = (tmp_path / "repository" / "net" / "warmup" / "input-0").read_bytes()
    assert len(data) == 4 * 64 * 4
    assert to_text(from_text(to_text(config), "")) == to_text(config)


@pytest.mark.parametrize(
    ("triton", "look"),
    [
        ({"dynamic_batching": False}, lambda c: not c.HasField("dynamic_batching")),
        (
            {"preferred_batch_sizes": [], "max_queue_delay_us": 0},
            lambda c: c.HasField("dynamic_batching"),
        ),
        ({"instances": 3}, lambda c: c.instance_group[0].count == 3),
        ({"versions": "all"}, lambda c: c.version_policy.HasField("all")),
        (
            {"versions": {"specific": [1, 4]}},
            lambda c: list(c.version_policy.specific.versions) == [1, 4],
        ),
        ({"warmup": False}, lambda c: not c.model_warmup),
        ({"model_name": "other"}, lambda c: c.name == "other"),
        (
            {"max_batch_size": 0, "preferred_batch_sizes": []},
            lambda c: (c.max_batch_size, list(c.input[0].dims)) == (0, [-1, -1, 64]),
        ),
        ({"max_batch_size": 4}, lambda c: c.max_batch_size == 4),
        (
            {"platform": "native"},
            lambda c: (
                (c.backend, c.platform, c.default_model_filename)
                == ("onnxruntime", "onnxruntime_onnx", "model.onnx")
            ),
        ),
    ],
)
def test_every_option_is_honoured(
    bundle: Path, tmp_path: Path, triton: dict[str, Any], look: Any
) -> None:
    assert look(export(bundle, tmp_path / "repository", {**FIXED, **triton}))


def test_without_the_client_library_the_install_line_is_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    assert "pip install 'megacompile[triton]'" in refused(bundle, tmp_path / "repository", FIXED)
