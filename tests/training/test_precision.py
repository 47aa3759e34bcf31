"""What autocast leaves in float32."""

from __future__ import annotations

import torch
from torch import nn

from megacompile.training.loading import Batch
from megacompile.training.precision import mixed, widened
from megacompile.training.recipe import Recipe
from tests.training.toy import batches_of, digits, make_form


def test_normalization_softmax_and_loss_are_computed_in_float32() -> None:
    seen: dict[str, torch.dtype] = {}

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
            self.head = nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.linear(image.flatten(1))
            seen["linear"] = x.dtype
            seen["norm"] = self.norm(x).dtype
            seen["softmax"] = torch.softmax(x, -1).dtype
            seen["method"] = x.softmax(-1).dtype
            seen["functional"] = nn.functional.softmax(x, -1).dtype
            return self.head(self.norm(x) * x.softmax(-1))

    form = make_form(Watched())
    step = form.step(Recipe(autocast="bfloat16"))
    batch = next(batches_of(form))

    def loss(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        seen["outputs"] = outputs.dtype
        return digits().loss(outputs, batch)

    step.loss_function = loss
    step.step(batch)
    assert seen.pop("linear") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}, seen
    assert {p.dtype for p in step.module.parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in step.optimizer.state.values()} == {torch.float32}


def test_only_narrow_floats_are_widened_wherever_they_are() -> None:
    half, brain = torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.bfloat16)
    kept = [torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.int8), "text", None]
    found = widened({"a": (half, [brain]), "kept": kept})
    assert found["a"][0].dtype == found["a"][1][0].dtype == torch.float32
    assert all(one is other for one, other in zip(found["kept"], kept, strict=True))


def test_without_a_dtype_nothing_is_mixed() -> None:
    x = torch.ones(2, 2)
    with mixed(None, "cpu"):
        assert (x @ x).dtype == torch.float32
    with mixed("bfloat16", "cpu"):
        assert (x @ x).dtype == torch.bfloat16
        assert nn.functional.layer_norm(x @ x, (2,)).dtype == torch.float32
