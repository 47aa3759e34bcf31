"""Field cases of PyTorch models: sharing, shapes, buffers, modes, names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.field import world
from tests.field.world import dim, normal, tensor

TIED = """
import torch
from torch import nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.emb.weight
    def forward(self, ids):
        return self.head(self.emb(ids))
def build():
    torch.manual_seed(0)
    return Tied()
"""
IDS = tensor("batch", "seq", dtype="int64", range=[0, 999])
TOKENS = {"batch": dim(1, 2, 4), "seq": dim(2, 7, 16)}


def ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 1000, shape)


def test_c01_tied_embedding_and_head_stay_one_tensor(tmp_path: Path) -> None:
    built = world.build(tmp_path, world.spec(inputs={"ids": IDS}, dims=TOKENS), {"model.py": TIED})
    assert built.original.parameters == 64_000
    assert built.step("to-onnx").parameters == 64_000
    size = sum(f.stat().st_size for f in built.folder.iterdir())
    assert size <= 1.1 * 256_000 + 50_000
    built.check({"ids": ids(2, 7)}, {"ids": ids(3, 11)})


def test_c04_a_shared_weight_is_quantized_once_or_said_to_be_two(tmp_path: Path) -> None:
    data = world.spec(
        inputs={"ids": IDS}, dims=TOKENS, passes=[{"quantize": {"method": "weight-only"}}]
    )
    step = world.build(tmp_path, data, {"model.py": TIED}).step("quantize")
    assert step.parameters == 64_000
    assert step.size_bytes is not None
    assert step.size_bytes < 0.35 * 256_000


def test_c05_one_block_used_twelve_times_stays_one(tmp_path: Path) -> None:
    model = """
    import torch
    from torch import nn
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
            self.blocks = nn.ModuleList([block] * 12)
        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return x
    def build():
        torch.manual_seed(0)
        return Shared()
    """
    data = world.spec(inputs={"x": tensor("batch", 10, 128)}, dims={"batch": dim(1, 2, 4)})
    built = world.build(tmp_path, data, {"model.py": model})
    assert built.step("to-onnx").parameters == built.original.parameters == 131_712
    assert sum(f.stat().st_size for f in built.folder.iterdir()) < 1.2 * 526_848
    built.check({"x": normal(2, 10, 128)}, {"x": normal(3, 10, 128)}, atol=1e-4, rtol=1e-3)


def test_c07_batchnorm_is_not_folded_into_a_shared_convolution(tmp_path: Path) -> None:
    model = """
    import torch
    from torch import nn
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.bn = nn.BatchNorm2d(8)
            self.bn.running_mean.fill_(0.5); self.bn.running_var.fill_(2)
            nn.init.constant_(self.bn.weight, 1.3); nn.init.constant_(self.bn.bias, -0.2)
        def forward(self, x, y):
            return self.bn(self.conv(x)), self.conv(y)
    def build():
        torch.manual_seed(0)
        return Two()
    """
    image = tensor("batch", 3, 8, 8)
    data = world.spec(
        inputs={"x": image, "y": image}, dims={"batch": dim(1, 2, 4)}, passes=["fold-batchnorm"]
    )
    built = world.build(tmp_path, data, {"model.py": model})
    built.check(*({"x": normal(n, 3, 8, 8), "y": normal(n, 3, 8, 8, seed=1)} for n in (2, 3)))


def test_c11_mode_and_weights_of_the_users_model(tmp_path: Path) -> None:
    model = """
    import torch
    from torch import nn
    from torch.nn.utils import prune
    MADE = []
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
        model[2].eval()
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        MADE.append(model)
        return model
    """
    data = world.spec(inputs={"input": tensor("batch", 8)}, dims={"batch": dim(1, 4, 8)})
    built = world.build(tmp_path, data, {"model.py": model})
    built.check({"input": normal(4, 8)}, {"input": normal(5, 8)})
    from megacompile.system import hooks

    made = hooks.load("model.py:MADE", tmp_path)
    assert made[0].training
    assert made[0][0].training
    assert not made[0][2].training


def test_c15_a_typical_batch_of_one_stays_dynamic(tmp_path: Path) -> None:
    model = """
    import torch
    from torch import nn
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                             nn.Flatten(), nn.Linear(8, 4))
    """
    data = world.spec(inputs={"input": tensor("batch", 3, 32, 32)}, dims={"batch": dim(1, 1, 16)})
    built = world.build(tmp_path, data, {"model.py": model})
    built.check(*({"input": normal(n, 3, 32, 32)} for n in (1, 2, 5, 16)))
    data["dims"] = {"batch": dim(0, 1, 16)}
    assert "greater than or equal to 1" in str(world.refused(tmp_path, data))


def test_c16_a_size_read_as_a_python_integer_is_not_baked(tmp_path: Path) -> None:
    model = """
    import torch
    from torch import nn
    class Mean(nn.Module):
        def forward(self, x):
            return x.sum(-1) / int(x.shape[-1])
    def build():
        return Mean()
    """
    data = world.spec(inputs={"x": tensor(2, "width")}, dims={"width": dim(2, 8, 32)})
    built = world.build(tmp_path, data, {"model.py": model})
    built.check({"x": normal(2, 8)}, {"x": normal(2, 16)}, {"x": normal(2, 5)})


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_c18_recurrent_state_is_not_frozen_at_the_example_batch(tmp_path: Path, kind: str) -> None:
    size = {"GRU": "20, 20", "LSTM": "20, 16, num_layers=2, bidirectional=True"}[kind]
    made = f"nn.{kind}({size}, batch_first=True)"
    model = f"""
    import torch
    from torch import nn
    def build():
        torch.manual_seed(0)
        return {made}
    """
    data = world.spec(
        inputs={"input": tensor("batch", "seq", 20)},
        dims={"batch": dim(1, 1, 8), "seq": dim(2, 5, 16)},
    )
    built = world.build(tmp_path, data, {"model.py": model})
    built.check({"input": normal(3, 9, 20)}, {"input": normal(1, 5, 20)})


@pytest.mark.parametrize(
    "update", ["self.n += 1", "self.n[0] = self.n[0] + 1", "self.n.copy_(self.n + 1)"]
)
def test_c20_a_mutated_buffer_is_refused_by_name(tmp_path: Path, update: str) -> None:
    model = f"""
    import torch
    from torch import nn
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.ones(1))
        def forward(self, x):
            {update}
            return x * self.n
    def build():
        return Counter()
    """
    data = world.spec(inputs={"x": tensor(4)})
    error = world.refused(tmp_path, data, {"model.py": model})
    assert error.exit_code == 2
    assert "buffer 'n' is mutated" in error.what
    assert "expose the state as an input and an output" in str(error.remedy)


def test_c23_a_mask_sentinel_beyond_half_range(tmp_path: Path) -> None:
    model = """
    import torch
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(4, 4)
        def forward(self, scores, keep):
            hidden = self.project(scores) + (1 - keep) * torch.finfo(torch.float32).min
            return torch.softmax(hidden, -1)
    def build():
        torch.manual_seed(0)
        return Masked()
    """
    data = world.spec(
        inputs={"scores": tensor("n", 4), "keep": tensor("n", 4, range=[0, 1])},
        dims={"n": dim(1, 3, 8)},
        passes=[{"cast": {"dtype": "float16"}}],
    )
    # Masks are zeros and ones: a made-up fraction of the sentinel means nothing.
    data["inputs"]["keep"] = tensor("n", 4, dtype="float32", range=[1, 1])
    built = world.build(tmp_path, data, {"model.py": model})
    keep = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    got = built.run(scores=normal(3, 4), keep=keep)
    expected = built.reference(scores=normal(3, 4), keep=keep)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, atol=1e-2)


@pytest.mark.parametrize("heads", [2, 8])
def test_c24_grouped_query_attention(tmp_path: Path, heads: int) -> None:
    model = """
    import torch
    from torch import nn
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    def build():
        return Attention()
    """
    q, kv = tensor("batch", 8, 6, 16), tensor("batch", heads, 6, 16)
    data = world.spec(inputs={"q": q, "k": kv, "v": kv}, dims={"batch": dim(1, 2, 4)})
    built = world.build(tmp_path, data, {"model.py": model})
    built.check(
        *(
            {
                "q": normal(n, 8, 6, 16),
                "k": normal(n, heads, 6, 16, seed=1),
                "v": normal(n, heads, 6, 16, seed=2),
            }
            for n in (2, 3)
        )
    )


def test_c27_bfloat16_for_onnxruntime_is_refused_in_the_plan(tmp_path: Path) -> None:
    data = world.spec(inputs={"x": tensor(2, 4)}, passes=[{"cast": {"dtype": "bfloat16"}}])
    error = world.refused(tmp_path, data, {})  # no model file: nothing was loaded
    assert "bfloat16" in error.what
    assert "openvino or aotinductor" in str(error.remedy)
