"""Tiny modules of the field cases, and the Eager form of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from megacompile.models.forms import Eager, Form
from megacompile.models.signature import Signature, bind
from megacompile.models.structure import rename, take_apart
from megacompile.models.tensors import Feeds, as_float64, to_numpy
from megacompile.models.torchmodules import copy_module
from megacompile.spec.inputs import ConstantInput, Dim, TensorInput
from tests.passes.context import example


def tensor(*shape: str | int, dtype: str = "float32", **more: Any) -> TensorInput:
    return TensorInput(shape=list(shape), dtype=dtype, **more)


def constant(value: Any) -> ConstantInput:
    return ConstantInput(value=value)


def dim(low: int, typical: int, high: int) -> Dim:
    return Dim(min=low, typical=typical, max=high)


def make_eager(
    module: nn.Module,
    inputs: Mapping[str, Any],
    dims: Mapping[str, Dim] | None = None,
    outputs: list[str] | None = None,
) -> Eager:
    """An Eager form; one run of a copy tells the outputs."""
    torch.manual_seed(0)
    module = module.eval()
    signature = Signature(inputs, dims or {})
    binding = bind(module.forward, inputs, "test")
    probe = Eager(copy_module(module), signature, binding)
    sizes = {name: one.typical for name, one in signature.dims.items()}
    structure, found = take_apart(probe.call(example(signature, sizes)))
    structure, names = rename(structure, list(found), outputs, "test")
    dtypes = [to_numpy(t).dtype.name for t in found.values()]
    signature = signature.with_outputs([names[n] for n in found], structure, dtypes)
    return Eager(module, signature, binding)


def assert_same(
    model: Form,
    reference: Eager,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    sizes: list[dict[str, int]] | None = None,
) -> None:
    """Equal outputs at the smallest, typical and largest sizes (or given ones)."""
    dims = reference.signature.dims
    wanted = sizes or [
        {n: getattr(d, which) for n, d in dims.items()} for which in ("min", "typical", "max")
    ]
    for number, one in enumerate(wanted):
        feeds = example(reference.signature, one, seed=number + 10)
        fresh = reference.with_module(copy_module(reference.module))
        assert_close(model.run(feeds), fresh.run(feeds), atol, rtol)


def assert_close(got: Feeds, expected: Feeds, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].shape == value.shape, name
        assert got[name].dtype == value.dtype, name
        np.testing.assert_allclose(as_float64(got[name]), as_float64(value), rtol, atol)


def cosine(got: Feeds, expected: Feeds) -> float:
    def flat(feeds: Feeds) -> Any:
        return np.concatenate([as_float64(v).ravel() for v in feeds.values()])

    a, b = flat(got), flat(expected)
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


class Untouched:
    """Checks that a module is as it was: weights' bits, training flags, hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before = self.snapshot()
        self.state = {k: v.clone() for k, v in module.state_dict().items()}

    def snapshot(self) -> Any:
        return [
            (
                name,
                one.training,
                list(one._forward_hooks),
                list(one._forward_pre_hooks),
                sorted(one.__dict__),
                [id(p) for p in one.parameters(recurse=False)],
                [p.requires_grad for p in one.parameters(recurse=False)],
            )
            for name, one in self.module.named_modules()
        ]

    def check(self) -> None:
        assert self.snapshot() == self.before
        for key, value in self.module.state_dict().items():
            assert torch.equal(value, self.state[key]), key


class Tied(nn.Module):
    """C01: an embedding and a head that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.emb(ids))


def tied() -> Eager:
    ids = tensor("batch", "seq", dtype="int64", range=(0, 999))
    return make_eager(Tied(), {"ids": ids}, {"batch": dim(1, 2, 4), "seq": dim(1, 7, 9)})


class Shared(nn.Module):
    """C05: one block used twelve times."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
        self.blocks = nn.ModuleList([block] * 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def shared() -> Eager:
    return make_eager(Shared(), {"x": tensor("batch", 10, 128)}, {"batch": dim(1, 2, 4)})


class ConvTwice(nn.Module):
    """C07: a convolution that is used with and without its normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        nn.init.constant_(self.bn.running_mean, 0.5)  # type: ignore[arg-type]
        nn.init.constant_(self.bn.running_var, 2.0)  # type: ignore[arg-type]
        nn.init.constant_(self.bn.weight, 1.3)
        nn.init.constant_(self.bn.bias, -0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.bn(self.conv(x)), self.conv(y)


def conv_twice() -> Eager:
    image = tensor("batch", 3, 8, 8)
    return make_eager(ConvTwice(), {"x": image, "y": image}, {"batch": dim(1, 2, 4)})


class Counter(nn.Module):
    """C20: a buffer that every call changes."""

    n: torch.Tensor

    def __init__(self, how: str = "add") -> None:
        super().__init__()
        self.how = how
        self.register_buffer("n", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "add":
            self.n += 1
        elif self.how == "index":
            self.n[0] = self.n[0] + 1
        elif self.how == "copy":
            self.n.copy_(self.n + 1)
        else:
            self.n = self.n + 1
        return x * self.n


def counter(how: str = "add") -> Eager:
    return make_eager(Counter(how), {"x": tensor("batch", 1)}, {"batch": dim(1, 2, 4)})


class Mean(nn.Module):
    """C16: a Python int of a shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) / int(x.shape[-1])


class Positions(nn.Module):
    """C16: positions made from a Python int of a shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(int(x.shape[1]))[None, :, None]


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


def conv_net(typical: int = 1) -> Eager:
    """C15: a batch whose usual size is 1."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    return make_eager(net, {"x": tensor("batch", 3, 32, 32)}, {"batch": dim(1, typical, 16)})


def linear(width: int = 8, depth: int = 1) -> Eager:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())][:-1]
    return make_eager(
        nn.Sequential(*layers), {"x": tensor("batch", width)}, {"batch": dim(1, 3, 8)}
    )


def frozen_norm() -> nn.Module:
    """C11: train mode with a frozen normalization, and a pruned layer."""
    from torch.nn.utils import prune

    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    return net


class GroupedAttention(nn.Module):
    """C24: grouped-query attention."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def grouped_attention(heads: int) -> Eager:
    q, kv = tensor("batch", 8, "seq", 16), tensor("batch", heads, "seq", 16)
    return make_eager(
        GroupedAttention(heads),
        {"q": q, "k": kv, "v": kv},
        {"batch": dim(1, 2, 4), "seq": dim(2, 5, 9)},
    )
