"""Field cases of signatures: inputs and outputs that get swapped, merged or dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.field import world
from tests.field.world import dim, tensor


class TestC49:
    """Inputs swapped, merged, dropped; outputs mislabelled."""

    def test_a_inputs_are_told_apart(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Sum(torch.nn.Module):
            def forward(self, q, k, v):
                return q + 10 * k + 100 * v
        def build():
            return Sum()
        """
        one = tensor("n")
        data = world.spec(inputs={"q": one, "k": one, "v": one}, dims={"n": dim(1, 4, 8)})
        built = world.build(tmp_path, data, {"model.py": model})
        ones = np.ones(3, np.float32)
        assert built.run(ones, 2 * ones, 3 * ones).tolist() == [321.0] * 3

    def test_b_c_keywords_in_any_order_and_keyword_only(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Keywords(torch.nn.Module):
            def forward(self, x1, x2, *, flag=True, extra=None):
                return x1 - x2 if flag else x2 - x1
        def build():
            return Keywords()
        """
        inputs = {"x2": tensor(3), "flag": {"value": True}, "x1": tensor(3)}
        built = world.build(tmp_path, world.spec(inputs=inputs), {"model.py": model})
        ones = np.ones(3, np.float32)
        assert built.run(x1=ones, x2=3 * ones).tolist() == [-2.0] * 3

    def test_d_an_unused_input_stays(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Unused(torch.nn.Module):
            def forward(self, x, unused):
                return x * 2
        def build():
            return Unused()
        """
        data = world.spec(inputs={"x": tensor(3), "unused": tensor(2)})
        built = world.build(tmp_path, data, {"model.py": model})
        found = built.run(x=np.ones(3, np.float32), unused=np.ones(2, np.float32))
        assert found.tolist() == [2.0] * 3

    def test_e_outputs_by_key_none_and_nesting(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Nested(torch.nn.Module):
            def forward(self, x):
                return {"b": x + 1, "a": x * 2, "n": None, "t": (x, x)}
        def build():
            return Nested()
        """
        data = world.spec(inputs={"x": tensor(3)}, outputs=["a", "b"])
        built = world.build(tmp_path, data, {"model.py": model})
        found = built.run(x=np.ones(3, np.float32))
        assert list(found) == ["b", "a", "n", "t"]
        assert found["a"].tolist() == found["b"].tolist() == [2.0] * 3
        assert found["n"] is None
        assert [t.tolist() for t in found["t"]] == [[1.0] * 3] * 2

    def test_f_a_float_argument_is_a_constant(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Bias(torch.nn.Module):
            def forward(self, x, bias: float = 0.1):
                return x + bias
        def build():
            return Bias()
        """
        data = world.spec(inputs={"x": tensor(3), "bias": {"value": 0.5}})
        built = world.build(tmp_path, data, {"model.py": model})
        ones = np.ones(3, np.float32)
        assert built.run(ones, 0.5).tolist() == built.run(x=ones).tolist() == [1.5] * 3
        with pytest.raises(world.MegacompileError, match="constant"):
            built.run(x=ones, bias=0.7)

    def test_g_an_input_returned_as_output(self, tmp_path: Path) -> None:
        model = """
        import torch
        class Same(torch.nn.Module):
            def forward(self, x):
                return x, x + 1
        def build():
            return Same()
        """
        built = world.build(
            tmp_path,
            world.spec(inputs={"x": tensor(3)}, outputs=["same", "more"]),
            {"model.py": model},
        )
        found = built.run.leaves({"x": np.ones(3, np.float32)})
        assert found["same"].tolist() == [1.0] * 3
        assert found["more"].tolist() == [2.0] * 3
