"""Saved tensors as integers: what comes back, what stays exact, and what memory is left."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from megacompile.training.compression import Compressor, Packed, View, compressing, is_dense
from megacompile.training.recipe import Compression

SMALL = Compression(minimum_elements=0, block_size=32)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("elements", [1, 31, 32, 33, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_within_half_a_step(bits: int, elements: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    flat = torch.randn(elements).to(dtype)
    packed = Packed(flat, bits, 32)
    back = packed.values()
    assert back.dtype == dtype
    assert back.shape == flat.shape
    for start in range(0, elements, 32):
        block, got = flat[start : start + 32].float(), back[start : start + 32].float()
        step = float(block.max() - block.min()) / (2**bits - 1)
        rounding = float(block.abs().max()) * {4: 1e-6, 2: 8e-3}[dtype.itemsize]
        assert float((block - got).abs().max()) <= step / 2 + rounding
    if elements > 1000:
        assert packed.nbytes() < elements * (bits / 8 + 8 / 32 + 0.01)


def test_a_mask_of_two_values_comes_back() -> None:
    """Dropout's noise is a float tensor on a CPU: zeros must stay zeros."""
    noise = nn.functional.dropout(torch.ones(1000), 0.1)
    back = Packed(noise, 8, 256).values()
    assert torch.equal(back == 0, noise == 0)
    torch.testing.assert_close(back, noise)


def test_infinities_are_left_alone() -> None:
    mask = torch.zeros(64)
    mask[3] = -torch.inf
    compressor = Compressor(SMALL, nn.Module())
    assert compressor.pack(mask) is mask


def test_what_stays_as_it_is() -> None:
    net = nn.Linear(8, 8)
    compressor = Compressor(Compression(minimum_elements=100, block_size=32), net)
    for tensor in (
        torch.arange(1000),
        torch.ones(1000, dtype=torch.bool),
        torch.randn(99),
        net.weight,
        net.weight.t(),
        torch.randn(4, 1).expand(4, 100),
    ):
        assert compressor.pack(tensor) is tensor
    assert isinstance(compressor.pack(torch.randn(100)), View)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.transpose(0, 1),
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, 2:5],
        lambda t: t[..., ::2],
        lambda t: t.view(-1),
        lambda t: t[1],
    ],
)
def test_views_come_back_with_shape_and_values(view) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    tensor = view(torch.randn(6, 10, 8))
    compressor = Compressor(SMALL, nn.Module())
    back = compressor.unpack(compressor.pack(tensor))
    assert back.shape == tensor.shape
    if is_dense(tensor):
        assert back.stride() == tensor.stride()
    torch.testing.assert_close(back, tensor, atol=0.02, rtol=0)


def test_one_storage_is_packed_once_and_never_taken_for_another() -> None:
    compressor = Compressor(SMALL, nn.Module())
    tensor = torch.randn(8, 16)
    first, second = compressor.pack(tensor), compressor.pack(tensor.t())
    assert isinstance(first, View)
    assert isinstance(second, View)
    assert first.packed is second.packed
    tensor.mul_(100)  # the same storage, other values
    third = compressor.pack(tensor)
    assert isinstance(third, View)
    assert third.packed is not first.packed
    address = tensor.untyped_storage().data_ptr()
    del tensor
    gc.collect()
    for _ in range(20):  # allocators hand an address out again
        other = torch.randn(8, 16)
        kept = compressor.pack(other)
        torch.testing.assert_close(compressor.unpack(kept), other, atol=0.03, rtol=0)
        if other.untyped_storage().data_ptr() == address:
            break


def test_gradients_of_a_layer_are_near_and_its_weight_exact() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
    x = torch.randn(128, 64, requires_grad=True)

    def gradients(compressed: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        if compressed:
            with compressing(Compression(), net):
                loss = net(x).square().sum()
        else:
            loss = net(x).square().sum()
        return list(torch.autograd.grad(loss, [x, *net.parameters()]))

    for exact, near in zip(gradients(False), gradients(True), strict=True):
        assert torch.nn.functional.cosine_similarity(exact.flatten(), near.flatten(), 0) > 0.9995
    # The last layer's bias needs nothing that was saved but the squared output.
    assert not torch.equal(gradients(True)[1], gradients(False)[1])
