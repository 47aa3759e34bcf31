"""`quantize` on an exported program: what is reported is in the graph, and the numbers hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.precision.quantize.exported import QuantizeExported
from torch import nn

from megacompile.errors import DataError, PassError
from megacompile.models.forms import Eager, Exported
from megacompile.models.tensors import Feeds
from megacompile.plan.passes import Result, Traits
from tests.passes import models
from tests.passes.context import example, make_context
from tests.passes.models import cosine, dim, make_eager, tensor

Method = Literal["static", "dynamic", "weight-only"]


def samples(model: Eager, count: int = 4) -> Iterator[Feeds]:
    sizes = {name: max(2, d.typical) for name, d in model.signature.dims.items()}
    return (example(model.signature, sizes, seed) for seed in range(count))


def quantize(model: Eager, tmp_path: Path, **options: Any) -> tuple[Exported, Result[Exported]]:
    context = make_context(tmp_path, model.signature, lambda: samples(model))
    exported = Export().run(model, context).model
    return exported, QuantizeExported(**options).run(exported, context)


def check(model: Eager, result: Result[Exported], least: float = 0.99) -> None:
    for size in ("min", "typical", "max"):
        sizes = {name: getattr(d, size) for name, d in model.signature.dims.items()}
        feeds = example(model.signature, sizes, 7)
        got, expected = result.model.run(feeds), model.run(feeds)
        assert {k: v.shape for k, v in got.items()} == {k: v.shape for k, v in expected.items()}
        assert cosine(got, expected) > least


@pytest.mark.parametrize("method", ["static", "dynamic", "weight-only"])
def test_all_layers_and_a_quarter_of_the_bytes(method: Method, tmp_path: Path) -> None:
    model = models.linear(width=256, depth=2)
    untouched = models.Untouched(model.module)
    exported, result = quantize(model, tmp_path, method=method)
    assert (result.sites.matched, result.sites.changed) == (2, 2)
    assert result.model.size_bytes() < 0.3 * exported.size_bytes()
    check(model, result)
    models.assert_same(exported, model)
    untouched.check()
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    assert (folder / "model.pt2").stat().st_size < 0.4 * exported.size_bytes()
    loaded = Exported.load(folder, model.signature)
    feeds = example(model.signature, {"batch": 5})
    models.assert_close(loaded.run(feeds), result.model.run(feeds))


def test_loads_in_a_fresh_process(tmp_path: Path) -> None:
    model = models.linear(width=16)
    _, result = quantize(model, tmp_path, method="static")
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    code = (
        "from pathlib import Path; from megacompile.models.forms import Exported;"
        f"Exported.load(Path({str(folder)!r}), None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def two() -> Eager:
    torch.manual_seed(0)
    return make_eager(Two(), {"x": tensor("batch", 16)}, {"batch": dim(1, 3, 8)})


@pytest.mark.parametrize("method", ["static", "dynamic", "weight-only"])
@pytest.mark.parametrize("keep", ["second", "linear_1", "sec*"])
def test_kept_layers(keep: str, method: Method, tmp_path: Path) -> None:
    _, result = quantize(two(), tmp_path, method=method, keep=[keep])
    assert result.sites.changed == 1
    assert result.sites.skipped == [("second (linear_1)", "kept by the spec")]
    check(two(), result)


def test_a_selector_without_matches(tmp_path: Path) -> None:
    with pytest.raises(PassError, match=r"'secnd' of `keep` matches nothing[\s\S]*'second'"):
        quantize(two(), tmp_path, method="weight-only", keep=["secnd"])


def test_no_effect_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="changed nothing"):
        quantize(two(), tmp_path, method="dynamic", keep=["linear"])
    with pytest.raises(PassError, match="0 of 1"):
        quantize(models.grouped_attention(2), tmp_path, method="dynamic")


def test_no_calibration_data(tmp_path: Path) -> None:
    model = two()
    context = make_context(tmp_path, model.signature, list)
    exported = Export().run(model, context).model
    with pytest.raises(DataError, match="empty"):
        QuantizeExported(method="static").run(exported, context)


def test_symmetric_activations_are_refused() -> None:
    one = QuantizeExported(method="static")
    assert one.refusal(Traits("x")) is None
    assert "symmetric: false" in str(one.refusal(Traits("x", symmetric=True)))
    assert QuantizeExported(method="weight-only").refusal(Traits("x", symmetric=True)) is None


@pytest.mark.parametrize("method", ["dynamic", "weight-only"])
def test_a_tied_head_leaves_the_embedding(method: Method, tmp_path: Path) -> None:
    model = models.tied()
    _, result = quantize(model, tmp_path, method=method)
    assert result.sites.changed == 1
    weights = {k: v for k, v in result.model.program.state_dict.items() if v.is_floating_point()}
    kept = [v for v in weights.values() if v.numel() == 64_000]
    assert len(kept) == 1
    assert torch.equal(kept[0], model.module.emb.weight)  # type: ignore[union-attr, arg-type]
    assert any("by storage" in note for note in result.notes)
    check(model, result)


@pytest.mark.parametrize("method", ["static", "weight-only"])
def test_a_block_used_twelve_times_stays_one(method: Method, tmp_path: Path) -> None:
    model = models.shared()
    _, result = quantize(model, tmp_path, method=method)
    assert result.sites.changed == 24
    assert result.model.size_bytes() < 0.3 * 526_848
    check(model, result)


@pytest.mark.parametrize("method", ["static", "weight-only"])
def test_convolution_used_with_and_without_normalization(method: Method, tmp_path: Path) -> None:
    model = models.conv_twice()
    _, result = quantize(model, tmp_path, method=method)
    feeds = example(model.signature, {"batch": 2}, 3)
    got, expected = result.model.run(feeds), model.run(feeds)
    for name in expected:
        assert abs(got[name] - expected[name]).max() < 0.05, name


def test_one_scale_per_weight(tmp_path: Path) -> None:
    _, result = quantize(two(), tmp_path, method="weight-only", per_channel=False)
    names = [str(n.target) for n in result.model.program.graph.nodes]
    assert not any("per_channel" in n for n in names)
    check(two(), result)
    _, result = quantize(two(), tmp_path, method="static", per_channel=False)
    names = [str(n.target) for n in result.model.program.graph.nodes]
    assert not any("per_channel" in n for n in names)
    check(two(), result)


def test_recurrent_layers_are_listed_as_not_quantized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.GRU(20, 20, batch_first=True)
    head = nn.Linear(20, 4)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = net, head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(x)[0])

    model = make_eager(
        Tagger(), {"x": tensor("batch", "seq", 20)}, {"batch": dim(1, 2, 4), "seq": dim(2, 5, 9)}
    )
    _, result = quantize(model, tmp_path, method="dynamic")
    assert result.sites.skipped == [("gru", "recurrent operators stay in float")]
    check(model, result)


class Padded(nn.Conv2d):
    """A subclass, as EfficientNet's: torchao looks for Conv2d itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(x, (1, 1, 1, 1))
        return nn.functional.conv2d(padded, self.weight, self.bias)


def test_convolutions_of_any_class_are_quantized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    twice = nn.ReLU6()
    net = nn.Sequential(Padded(3, 8, 3), twice, nn.Conv2d(8, 8, 3), twice)
    model = make_eager(net, {"x": tensor("batch", 3, 8, 8)}, {"batch": dim(1, 2, 4)})
    exported, result = quantize(model, tmp_path, method="static")
    assert (result.sites.matched, result.sites.changed) == (2, 2)
    assert result.model.parameters() < 1.2 * exported.parameters()
    check(model, result)
