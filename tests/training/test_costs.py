"""What blocks keep and cost, measured: known layers give known bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megacompile.training.costs import block_costs, measure
from megacompile.training.solver import Problem, Saved, Segment, Way
from tests.training.toy import batches_of, make_form

ROWS = 16


class Block(nn.Module):
    """Keeps what goes into both layers, and which values were above zero by its output."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = image.flatten(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_bytes_of_known_blocks() -> None:
    form = make_form(Net(), batch_size=ROWS, accumulate=1)
    names = ["blocks.0", "blocks.1"]
    step = form.step()
    problem = measure(step, names, next(batches_of(form)))
    assert set(problem.milliseconds) == set(problem.selective) == set(names)
    assert all(value > 0 for value in problem.milliseconds.values())
    first, second = block_costs(problem, [Way("blocks.0")], "why not")
    inner, between = ROWS * 256 * 4, ROWS * 64 * 4
    assert first.saved_bytes == inner, "the image was there before"
    assert second.saved_bytes == inner + between, "it starts from the first one's output"
    assert (first.kept_bytes, second.kept_bytes) == (0, between)
    assert (first.chosen, first.why) == (True, "why not")
    assert (second.chosen, second.why) == (False, "it fits without")
    assert all(one.grad is None for one in step.module.parameters())


NESTED = Problem(
    {"a": 4.0, "a.x": 1.0},
    [Segment(("a", "a.x"), 8), Segment(("a",), 8)],
    [
        Saved(8, (0,), products=("a", "a.x")),
        Saved(6, (1,)),
        Saved(2, (0,), ("a", "a.x")),
        Saved(5, (1,), held=False, products=("a",)),
    ],
    {"a": 0.5},
)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([Way("a")], {"a": (16, 2, 4.0, True, "asked"), "a.x": (10, 2, 1.0, False, "part of a")}),
        ([Way("a", True)], {"a": (16, 15, 0.5, True, "asked")}),
        ([Way("a.x")], {"a": (16, 2, 4.0, False, "a.x inside it is enough")}),
    ],
)
def test_records_for_the_report(chosen: list[Way], expected: dict[str, tuple[object, ...]]) -> None:
    found = {one.block: one for one in block_costs(NESTED, chosen, "asked")}
    for name, figures in expected.items():
        one = found[name]
        bytes_of = (one.saved_bytes, one.kept_bytes)
        assert figures == (*bytes_of, one.recompute_ms, one.chosen, one.why)
