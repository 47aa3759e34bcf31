"""`share-parameters`: what is tied is one tensor, and stays one in every file and engine."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megacompile_passes.modules.blocks import repeated_blocks
from megacompile_passes.modules.wiring import correspondence, record_wiring
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from pydantic import ValidationError
from torch import nn

from megacompile.errors import DataError, PassError
from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from megacompile.models.torchmodules import copy_module
from megacompile.plan.passes import Effect
from tests.passes import models
from tests.passes.context import example, make_context
from tests.passes.models import Untouched, dim, make_eager, tensor

WIDTH = 16


class Block(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(torch.relu(self.up(self.norm(x)))) * self.scale + self.shift
        return x + y if mask is None else x + y * mask


class Stack(nn.Module):
    """Blocks that are called in different ways, and layers around them."""

    def __init__(self, count: int = 4, scales: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(*scales[i : i + 1]) for i in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for index, block in enumerate(self.blocks):
            x = block(x, mask=None) if index % 2 else block(x)
        return self.leave(x)


BLOCK = 2 * WIDTH + 32 * WIDTH + 32 + 32 * WIDTH + WIDTH
AROUND = 2 * (WIDTH * WIDTH + WIDTH)


def eager(module: nn.Module) -> Eager:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return make_eager(module, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 3, 8)})


def samples(model: Eager, count: int = 16) -> Iterator[Feeds]:
    return (example(model.signature, {"batch": 8}, seed) for seed in range(count))


def share(model: Eager, tmp_path: Path, **options: Any) -> Any:
    context = make_context(tmp_path, model.signature, lambda: samples(model))
    return ShareParametersEager(**{"mode": "group", **options}).run(model, context)


def test_groups_of_blocks_have_one_storage(tmp_path: Path) -> None:
    model = eager(Stack())
    untouched = Untouched(model.module)
    result = share(model, tmp_path, every=2)
    blocks: Any = result.model.module.blocks
    for first, second in ((0, 1), (2, 3)):
        for name, parameter in blocks[first].named_parameters():
            assert blocks[second].get_parameter(name) is parameter
    assert blocks[0].up.weight is not blocks[2].up.weight
    assert blocks[0].shift is not blocks[1].shift, "buffers stay apart"
    assert (result.sites.matched, result.sites.changed) == (4, 4)
    assert result.model.parameters() - 4 * WIDTH == 2 * BLOCK + AROUND
    assert "blocks.0 = blocks.1; blocks.2 = blocks.3" in result.notes
    untouched.check()


def test_answers_are_those_of_the_first_block_everywhere(tmp_path: Path) -> None:
    model = eager(Stack(2))
    expected = copy_module(model.module)
    assert isinstance(expected, Stack)
    expected.blocks[1].load_state_dict(expected.blocks[0].state_dict())
    models.assert_same(share(model, tmp_path, every=2).model, model.with_module(expected))


def test_gradients_add_up_and_the_optimizer_sees_one(tmp_path: Path) -> None:
    """Equal to autograd on two separate blocks with the same values, summed by hand."""
    model = eager(Stack(2))
    shared: Any = share(model, tmp_path, every=2).model.module
    apart: Any = copy_module(model.module)
    apart.blocks[1].load_state_dict(apart.blocks[0].state_dict())
    x = torch.randn(4, WIDTH)
    for one in (shared, apart):
        one(x).square().sum().backward()
    for name, parameter in shared.blocks[0].named_parameters():
        both = apart.blocks[0].get_parameter(name).grad + apart.blocks[1].get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, both)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
    assert sum(p.numel() for p in optimizer.param_groups[0]["params"]) == BLOCK + AROUND
    before = shared.blocks[0].up.weight.detach().clone()
    gradient = shared.blocks[0].up.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(shared.blocks[1].up.weight, before - 0.1 * gradient)


def test_the_tie_survives_copies_and_files(tmp_path: Path) -> None:
    result = share(eager(Stack()), tmp_path, every=4)
    folder = tmp_path / "saved"
    folder.mkdir()
    result.model.save(folder)
    file = io.BytesIO()
    torch.save(result.model.module.state_dict(), file)
    own_parameters = BLOCK + AROUND
    assert file.tell() < 4 * own_parameters + 4 * 4 * WIDTH + 8000
    target: Any = copy_module(result.model.module)
    file.seek(0)
    target.load_state_dict(torch.load(file))
    for one in (Eager.load(folder, result.model.signature).module, target):
        assert one.blocks[3].up.weight is one.blocks[0].up.weight
        assert sum(p.numel() for p in one.parameters()) == own_parameters


def test_blocks_that_compute_other_things_are_not_shared(tmp_path: Path) -> None:
    model = eager(Stack(4, scales=(1.0, 0.5, 1.0, 0.5)))
    result = share(model, tmp_path, every=2)
    assert result.notes[0] in (
        "blocks.0 = blocks.2; blocks.1 = blocks.3",
        "blocks.1 = blocks.3; blocks.0 = blocks.2",
    )
    with pytest.raises(PassError, match="can't share parameters") as caught:
        share(model, tmp_path, groups=[["blocks.0", "blocks.1"]])
    assert "0.5" in str(caught.value.got)


class Renamed(nn.Module):
    """The same computation as `Block`, with other names and in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(32, WIDTH), nn.Linear(WIDTH, 32)
        self.before = nn.LayerNorm(WIDTH)
        self.register_buffer("zero", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(self.before(x)))) * 1.0
        return x + (y + self.zero)


def test_parameters_correspond_by_their_part_in_the_computation(tmp_path: Path) -> None:
    model = eager(nn.Sequential(Block(), Renamed()))
    module: Any = share(model, tmp_path, groups=[["0", "1"]]).model.module
    assert module[1].first.weight is module[0].up.weight
    assert module[1].second.bias is module[0].down.bias
    assert module[1].before.weight is module[0].norm.weight


def test_a_swapped_wiring_is_no_isomorphism() -> None:
    class Difference(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            self.swapped, self.a, self.b = swapped, nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = self.a(x), torch.relu(self.b(x))
            return second - first if self.swapped else first - second

    net = nn.Sequential(Difference(False), Difference(True), Difference(False))
    wirings = record_wiring(net, lambda: net(torch.randn(2, 4)))
    assert correspondence(wirings["0"], wirings["1"]) is None
    assert correspondence(wirings["0"], wirings["2"]) == {
        n: n for n in ("a.weight", "a.bias", "b.weight", "b.bias")
    }
    assert repeated_blocks(net, wirings) == [("0", "2")]


def test_recurrent_cells_keep_their_flat_weights(tmp_path: Path) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, None]
            for cell in self.cells:
                x = cell(x)[0]
            return x[:, 0]

    model = eager(Cells())
    module: Any = share(model, tmp_path, every=2).model.module
    first, second = module.cells
    assert all(a is b for a, b in zip(first._flat_weights, second._flat_weights, strict=True))
    expected: Any = copy_module(model.module)
    expected.cells[1].load_state_dict(expected.cells[0].state_dict())
    models.assert_same(model.with_module(module), model.with_module(expected))


class TestValues:
    def test_the_mean(self, tmp_path: Path) -> None:
        model = eager(Stack(3))
        module: Any = share(model, tmp_path, groups=[["blocks.*"]], init="mean").model.module
        given: Any = model.module
        mean = torch.stack([b.up.weight for b in given.blocks]).mean(0)
        torch.testing.assert_close(module.blocks[2].up.weight, mean)

    def test_least_squares_of_linear_layers_is_the_solution(self, tmp_path: Path) -> None:
        """Against numpy's solver on the stacked inputs and answers of both layers."""

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.a(x) + self.b(torch.relu(x) * 3)

        model = eager(Two())
        result = share(model, tmp_path, groups=[["a", "b"]], init="least-squares")
        given: Any = model.module
        x = torch.from_numpy(np.concatenate([f["x"] for f in samples(model)]))
        rows = torch.cat([x, torch.relu(x) * 3]).double()
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
        with torch.no_grad():
            answers = torch.cat([given.a(x), given.b(torch.relu(x) * 3)]).double()
        expected = np.linalg.lstsq(rows.numpy(), answers.numpy(), rcond=None)[0]
        shared: Any = result.model.module
        np.testing.assert_allclose(shared.a.weight.detach(), expected[:-1].T, atol=2e-3)
        np.testing.assert_allclose(shared.a.bias.detach(), expected[-1], atol=2e-3)

    def test_least_squares_of_blocks_is_nearer_than_the_first_or_the_mean(
        self, tmp_path: Path
    ) -> None:
        model = eager(Stack(2))
        inputs: dict[int, Any] = {}
        original: Any = model.module
        handles = [
            b.register_forward_hook(lambda m, a, o, i=i: inputs.update({i: (a[0], o)}))
            for i, b in enumerate(original.blocks)
        ]
        model.run(example(model.signature, {"batch": 8}, 99))  # not among the samples
        for handle in handles:
            handle.remove()

        def error(init: str) -> float:
            module: Any = share(model, tmp_path, every=2, init=init).model.module
            with torch.no_grad():
                return sum(
                    float(
                        (block(inputs[i][0]) - inputs[i][1]).square().sum()
                        / inputs[i][1].square().sum()
                    )
                    for i, block in enumerate(module.blocks)
                )

        errors = {init: error(init) for init in ("first", "mean", "least-squares")}
        assert errors["least-squares"] < 0.8 * min(errors["first"], errors["mean"]), errors

    def test_nearest_is_the_block_that_keeps_the_answers(self, tmp_path: Path) -> None:
        """Every choice of blocks is tried here; no other choice for one group alone is better."""
        model = eager(Stack(4))
        original: Any = model.module
        with torch.no_grad():  # the second block of the first pair is what that pair does
            for value in original.blocks[0].parameters():
                value.mul_(0.01)
        feeds = list(samples(model))
        wanted = [model.run(one) for one in feeds]

        def error(chosen: tuple[int, int]) -> float:
            tried = model.copy()
            blocks: Any = tried.module.blocks
            for at, source in enumerate((chosen[0], chosen[0], chosen[1], chosen[1])):
                blocks[at].load_state_dict(original.blocks[source].state_dict())
            got = [tried.run(one) for one in feeds]
            return float(
                np.mean(
                    [
                        sum(((g[n] - w[n]) ** 2).sum() for n in w)
                        / sum((w[n] ** 2).sum() for n in w)
                        for g, w in zip(got, wanted, strict=True)
                    ]
                )
            )

        result = share(model, tmp_path, every=2, init="nearest")
        module: Any = result.model.module
        weights = [block.up.weight for block in original.blocks]
        first, second = (
            next(i for i, w in enumerate(weights) if torch.equal(w, block.up.weight))
            for block in (module.blocks[0], module.blocks[2])
        )
        assert first == 1
        assert error((first, second)) <= min(error((0, second)), error((first, 5 - second)))
        assert error((first, second)) < error((0, 2))
        assert f"values of blocks.1, blocks.{second}" in result.notes[1]

    @pytest.mark.parametrize("init", ["nearest", "least-squares"])
    def test_empty_calibration(self, tmp_path: Path, init: str) -> None:
        model = eager(Stack(2))
        context = make_context(tmp_path, model.signature, [])
        with pytest.raises(DataError, match="empty"):
            ShareParametersEager(mode="group", every=2, init=init).run(model, context)


class TestIdentical:
    def test_equal_tensors_become_one_and_others_never(self, tmp_path: Path) -> None:
        model = eager(Stack(3))
        module: Any = model.module
        module.blocks[2].load_state_dict(module.blocks[0].state_dict())
        with torch.no_grad():
            module.blocks[2].up.weight[0, 0] = torch.nextafter(
                module.blocks[2].up.weight[0, 0], torch.tensor(9.0)
            )
        untouched = Untouched(module)
        result = share(model, tmp_path, mode="identical")
        shared: Any = result.model.module
        assert shared.blocks[2].down.weight is shared.blocks[0].down.weight
        assert shared.blocks[2].up.weight is not shared.blocks[0].up.weight
        assert shared.blocks[1].shift is shared.blocks[0].shift
        models.assert_same(result.model, model, atol=0, rtol=0)
        assert ShareParametersEager(mode="identical").promised() is Effect.EXACT
        untouched.check()

    def test_negative_zero_is_not_zero(self, tmp_path: Path) -> None:
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        model = eager(net)
        with torch.no_grad():
            net[0].bias.zero_()
            net[1].bias.copy_(torch.full((WIDTH,), -0.0))
        assert share(model, tmp_path, mode="identical").sites.changed == 0

    def test_statistics_of_a_batch_norm_stay_apart(self, tmp_path: Path) -> None:
        net = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH))
        model = make_eager(net, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 3, 8)})
        result = share(model, tmp_path, mode="identical")
        module: Any = result.model.module
        assert module[0].running_mean is not module[1].running_mean
        assert module[0].weight is module[1].weight
        assert ("0.running_mean", "a statistic that training updates") in result.sites.skipped


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"mode": "group"}, "needs one of"),
            ({"mode": "group", "every": 1}, "greater than"),
            ({"mode": "group", "every": 2, "groups": [["a"]]}, "not both"),
            ({"mode": "identical", "every": 2}, "takes no `every`"),
            ({"mode": "identical", "init": "mean"}, "takes no `init`"),
        ],
    )
    def test_options_that_do_not_fit(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            ShareParametersEager(**options)

    def test_a_selector_without_a_match(self, tmp_path: Path) -> None:
        with pytest.raises(PassError, match="matches nothing") as caught:
            share(eager(Stack()), tmp_path, groups=[["block.*"]])
        assert "blocks" in str(caught.value.remedy)

    def test_one_block_and_overlapping_groups(self, tmp_path: Path) -> None:
        model = eager(Stack())
        with pytest.raises(PassError, match="one block shares nothing"):
            share(model, tmp_path, groups=[["blocks.0"]])
        with pytest.raises(PassError, match="in two groups"):
            share(model, tmp_path, groups=[["blocks.0", "blocks.1"], ["blocks.1", "blocks.2"]])

    def test_nothing_repeats(self, tmp_path: Path) -> None:
        with pytest.raises(PassError, match="no repeated blocks"):
            share(eager(nn.Sequential(Block(), nn.Linear(WIDTH, WIDTH))), tmp_path, every=2)

    def test_blocks_that_are_one_already(self, tmp_path: Path) -> None:
        block = Block()
        net = nn.Sequential(block, block)
        with pytest.raises(PassError, match="no repeated blocks"):
            share(eager(net), tmp_path, every=2)

    def test_a_rest_is_named(self, tmp_path: Path) -> None:
        result = share(eager(Stack(3)), tmp_path, every=2)
        assert result.sites.skipped == [
            ("blocks.2", "the last of its kind: nothing is left to share with")
        ]
