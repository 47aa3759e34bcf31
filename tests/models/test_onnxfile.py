"""ONNX files on disk: weights beside the graph, nothing appended, and what counts as a weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megacompile.errors import ModelError
from megacompile.models import onnxfile

LARGE = np.arange(512, dtype=np.float32).reshape(16, 32)
SMALL = np.float32([1, 2])


def model(*nodes: onnx.NodeProto, weights: dict[str, Any] | None = None) -> onnx.ModelProto:
    """x [n, 16] to y; by default one product with a large matrix and a small vector unused."""
    nodes = nodes or (helper.make_node("MatMul", ["x", "large"], ["y"]),)
    weights = weights if weights is not None else {"large": LARGE, "small": SMALL}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_large_weights_lie_beside_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "m.onnx"
    onnxfile.write(model(), path)
    assert onnxfile.data_files(path) == ["m.onnx.data"]
    size = onnxfile.size_bytes(path)
    assert size == path.stat().st_size + (path.parent / "m.onnx.data").stat().st_size
    onnxfile.write(model(), path)
    assert onnxfile.size_bytes(path) == size, "onnx would append"
    assert onnxfile.count_parameters(path) == 512 + 2
    bare = onnxfile.read(path, weights=False)
    assert not bare.graph.initializer[0].raw_data


def test_a_copy_has_data_of_its_own_name(tmp_path: Path) -> None:
    onnxfile.write(model(), tmp_path / "m.onnx")
    copy = tmp_path / "other" / "copy.onnx"
    onnxfile.copy_model(tmp_path / "m.onnx", copy)
    assert onnxfile.data_files(copy) == ["copy.onnx.data"]
    assert np.array_equal(numpy_helper.to_array(onnxfile.read(copy).graph.initializer[0]), LARGE)
    onnx.save(model(weights={"large": LARGE}), tmp_path / "whole.onnx")
    onnxfile.copy_model(tmp_path / "whole.onnx", copy.with_name("whole.onnx"))
    assert sorted(p.name for p in copy.parent.iterdir()) == [
        "copy.onnx",
        "copy.onnx.data",
        "whole.onnx",
    ]


def test_several_data_files_become_one(tmp_path: Path) -> None:
    weights = {"large": LARGE, "more": LARGE + 1}
    onnx.save_model(
        model(weights=weights),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=False,
    )
    assert len(onnxfile.data_files(tmp_path / "m.onnx")) == 2
    onnxfile.copy_model(tmp_path / "m.onnx", tmp_path / "copy" / "m.onnx")
    assert onnxfile.data_files(tmp_path / "copy" / "m.onnx") == ["m.onnx.data"]


def test_the_fingerprint_is_of_the_data_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnxfile.write(model(), path)
    before = onnxfile.fingerprint(path)
    data = bytearray((tmp_path / "m.onnx.data").read_bytes())
    data[5] ^= 1
    (tmp_path / "m.onnx.data").write_bytes(data)
    assert onnxfile.fingerprint(path) != before


@pytest.mark.parametrize(
    ("content", "message"), [(None, "a file of the ONNX model is missing"), (b"no", "not readable")]
)
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        onnxfile.read(tmp_path / "m.onnx")
    assert str(tmp_path / "m.onnx") in str(caught.value)


def test_weights_of_bodies_and_constants_count_and_scales_do_not() -> None:
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(SMALL, "ignored")
    )
    inner = helper.make_graph(
        [helper.make_node("Identity", ["inside"], ["out"])],
        "body",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(SMALL, "inside")],
    )
    made = model(
        constant,
        helper.make_node("If", ["flag"], ["z"], then_branch=inner, else_branch=inner),
        helper.make_node("DequantizeLinear", ["w_quantized", "w_scale", "w_zero_point"], ["y"]),
        weights={
            "w_quantized": np.int8([1, 2, 3]),
            "w_scale": np.float32(0.5),
            "w_zero_point": np.int8(0),
            "flag": np.array(True),
        },
    )
    found = onnxfile.weights(made)
    assert {name.rpartition("/")[2] for name in found} == {"w_quantized", "c", "inside"}
    assert len(found) == 4, "two branches have one each"
    assert onnxfile.opset(made) == 17
    assert len(list(onnxfile.all_graphs(made))) == 3
    assert sum(node.op_type == "Identity" for node in onnxfile.all_nodes(made)) == 2


def test_a_session_takes_what_the_graph_has(tmp_path: Path) -> None:
    onnxfile.write(model(), tmp_path / "m.onnx")
    session = onnxfile.open_session(tmp_path / "m.onnx", threads=1, optimization="none")
    x = np.ones((2, 16), np.float32)
    for outputs in (["y"], []):
        found = session.run({"x": x, "more": x}, outputs)
        np.testing.assert_allclose(found["y"], x @ LARGE, rtol=1e-5)


def test_a_model_that_the_runtime_refuses_is_named(tmp_path: Path) -> None:
    onnx.save(model(helper.make_node("Mystery", ["x"], ["y"])), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"ONNX Runtime refuses the model(.|\n)*Mystery"):
        onnxfile.open_session(tmp_path / "m.onnx")
