"""Counts of ONNX files against pencil and paper, and against the same model in torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from megacompile.errors import ModelError
from megacompile.measure.module_operations import count_module
from megacompile.measure.onnx_operations import count_onnx

helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def weight(name, *shape):
    return onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)


def write(path, nodes, inputs, outputs, weights=(), **options):
    def values(entries):
        return [helper.make_tensor_value_info(*entry) for entry in entries]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), list(weights))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path, **options)
    return path


def test_symbolic_sizes_are_set_and_sizes_the_graph_computes_are_followed(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Gather", ["size", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    indices = [
        onnx.numpy_helper.from_array(np.array([0]), "zero"),
        onnx.numpy_helper.from_array(np.array([-1]), "minus"),
    ]
    path = write(
        tmp_path / "m.onnx",
        nodes,
        [("x", FLOAT, ["batch", "seq", 4])],
        [("y", FLOAT, ["batch", 5])],
        [weight("w", 12, 5), *indices],
    )
    found = count_onnx(path, {"batch": 2, "seq": 3})
    assert found.operations == 2 * 2 * 12 * 5
    assert found.io_bytes == 4 * (2 * 3 * 4 + 2 * 5)
    assert found.note is None


@pytest.mark.parametrize(
    ("node", "shapes", "output", "expected"),
    [
        (("Gemm", {"transA": 1}), [(4, 3), (4, 5)], (3, 5), 2 * 3 * 4 * 5),
        (("Conv", {"group": 2}), [(1, 4, 8, 8), (6, 2, 3, 3)], (1, 6, 6, 6), 2 * 216 * 18),
        (("ConvTranspose", {}), [(1, 4, 8), (4, 6, 3)], (1, 6, 10), 2 * 32 * 18),
        (
            ("LSTM", {"hidden_size": 6}),
            [(5, 2, 3), (1, 24, 3), (1, 24, 6)],
            (5, 1, 2, 6),
            2 * 10 * 24 * 9,
        ),
        (
            ("GRU", {"hidden_size": 6}),
            [(5, 2, 3), (1, 18, 3), (1, 18, 6)],
            (5, 1, 2, 6),
            2 * 10 * 18 * 9,
        ),
    ],
)
def test_each_kind_of_product(tmp_path, node, shapes, output, expected):
    kind, attributes = node
    names = ["x", *(f"w{index}" for index in range(1, len(shapes)))]
    weights = [weight(name, *shape) for name, shape in zip(names[1:], shapes[1:], strict=True)]
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node(kind, names, ["y"], **attributes)],
        [("x", FLOAT, shapes[0])],
        [("y", FLOAT, output)],
        weights,
    )
    found = count_onnx(path, {})
    assert found.operations == expected
    assert found.weight_bytes == 4 * sum(int(np.prod(shape)) for shape in shapes[1:])


def test_external_weights_need_not_be_there(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, ["n", 512])],
        [("y", FLOAT, ["n", 64])],
        [weight("w", 512, 64)],
        save_as_external_data=True,
        location="w.bin",
    )
    (tmp_path / "w.bin").unlink()
    found = count_onnx(path, {"n": 3})
    assert found.operations == 2 * 3 * 512 * 64
    assert found.weight_bytes == 4 * 512 * 64


def test_a_lookup_counts_its_rows(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", ["w", "ids"], ["y"])],
        [("ids", INT64, ["n"])],
        [("y", FLOAT, ["n", 64])],
        [weight("w", 1000, 64)],
    )
    assert count_onnx(path, {"n": 3}).weight_bytes == 4 * 3 * 64


def branch(name, depth=0):
    """A body that multiplies; `depth` more bodies are nested inside it."""
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"{name}_{depth}"])]
    if depth:
        inner = branch(name, depth - 1)
        nodes.append(
            helper.make_node(
                "If", ["flag"], [f"{name}_if{depth}"], then_branch=inner, else_branch=inner
            )
        )
    out = helper.make_tensor_value_info(f"{name}_{depth}", FLOAT, [2, 5])
    return helper.make_graph(nodes, f"{name}{depth}", [], [out])


def test_bodies_count_once_and_the_note_says_so(tmp_path):
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    path = write(
        tmp_path / "m.onnx",
        [node],
        [("x", FLOAT, ["n", 4]), ("flag", onnx.TensorProto.BOOL, [])],
        [("y", FLOAT, [2, 5])],
        [weight("w", 4, 5)],
    )
    found = count_onnx(path, {"n": 2})
    assert found.operations == 2 * (2 * 2 * 4 * 5)
    assert found.note == "2 nodes in bodies of If, Loop or Scan counted once"


def test_what_can_not_be_counted_is_named(tmp_path):
    nodes = [
        helper.make_node("Einsum", ["x", "w"], ["e"], equation="ij,jk->ik"),
        helper.make_node("Mystery", ["x"], ["m"], domain="custom"),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    path = write(
        tmp_path / "m.onnx",
        nodes,
        [("x", FLOAT, ["n", 4])],
        [("e", FLOAT, ["n", 5]), ("y", FLOAT, None)],
        [weight("w", 4, 5)],
    )
    found = count_onnx(path, {"n": 2})
    assert found.operations == 0
    assert found.note == "not counted: 1 Einsum; 1 matrix products of unknown size not counted"


def test_a_long_chain_needs_no_deep_stack(tmp_path):
    count = 6000
    nodes = [helper.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(count)]
    path = write(
        tmp_path / "m.onnx",
        nodes,
        [("t0", FLOAT, ["n", 4])],
        [(f"t{count}", FLOAT, ["n", 4])],
        [weight("w", 4, 4)],
    )
    found = count_onnx(path, {"n": 2})
    assert found.operations == count * 2 * 2 * 4 * 4
    assert found.weight_bytes == 4 * 16


@pytest.mark.parametrize("content", [None, b"not a model at all"])
def test_a_file_that_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        count_onnx(path, {})


def test_torch_and_onnx_agree(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    ).eval()
    x = torch.zeros(2, 3, 8, 8)
    path = tmp_path / "m.onnx"
    torch.onnx.export(model, (x,), str(path), dynamo=True, verbose=False)
    ours, theirs = count_module(model, (x,)), count_onnx(path, {})
    assert ours.operations == theirs.operations
    assert ours.weight_bytes == pytest.approx(theirs.weight_bytes, abs=64)
    assert ours.io_bytes == theirs.io_bytes
