"""`recover` with `quantize`: trained with rounded values, and quantized then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.precision.quantize.exported import QuantizeExported
from megacompile_passes.recover.quantized import RecoverQuantized
from torch import nn

from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from megacompile.models.torchmodules import copy_module
from megacompile.plan.passes import Metrics, PassContext
from tests.passes.context import example, make_context
from tests.passes.models import Untouched, cosine, dim, make_eager, tensor
from tests.passes.recover.worlds import CLASSES, batches, of_layer_norm, probe, recover


def test_quantization_aware_training_beats_quantizing_at_four_bits(
    world: tuple[Eager, PassContext],
) -> None:
    context, original = world[1], of_layer_norm()
    context = replace(context, original=lambda: original)
    untouched = Untouched(original.module)

    def evaluate(run: Any) -> Metrics:
        error = 1 - cosine(run(probe(original)), original.run(probe(original)))
        return {"error": {"value": error, "higher_is_better": False}}

    options = recover(
        distill={"hidden": ["blocks.1"], "hidden_weight": 0.01},
        steps=300,
        optimizer={"adamw": {"lr": 3e-3, "weight_decay": 0.0}},
        quantize={"bits": 4, "per_channel": False},
    )
    found = RecoverQuantized(**options).run(original, replace(context, evaluate=evaluate))
    untouched.check()
    assert found.recovery is not None
    # What was trained is what is lowered, to the last bit of its scales.
    after = found.recovery.metric_after["error"].value
    assert after == pytest.approx(evaluate(found.model.run)["error"]["value"], abs=1e-6)
    assert after < found.recovery.metric_before["error"].value

    def calibration() -> Iterator[Feeds]:
        (batch,) = batches()
        for row in batch["x"][:64]:
            yield {"x": row[None]}

    plain = QuantizeExported(method="static", bits=4, per_channel=False, symmetric=False)
    ptq = plain.run(
        Export().run(original, context).model,
        make_context(context.work, original.signature, calibration),
    )
    feeds = probe(original)
    errors = [1 - cosine(one.model.run(feeds), original.run(feeds)) for one in (ptq, found)]
    assert errors[1] < errors[0] / 1.5, errors
    program = found.model.program
    held = [*program.state_dict.values(), *program.constants.values()]
    weights = [v for v in held if isinstance(v, torch.Tensor) and v.dtype == torch.int8]
    assert len(weights) == 5
    assert all(int(v.min()) >= -8 and int(v.max()) <= 7 for v in weights)
    assert found.sites.changed == 5
    assert list(found.model.run(feeds)) == ["logits"], "hidden states are not part of the model"
    for batch in (1, 3, 512):
        answers = found.model.run(example(original.signature, {"batch": batch}))
        assert answers["logits"].shape == (batch, CLASSES)


def test_what_shall_stay_in_float_does(world: tuple[Eager, PassContext]) -> None:
    context, original = world[1], of_layer_norm()
    context = replace(context, original=lambda: original)
    options = recover(distill={}, steps=5, quantize={"keep": ["head"]})
    found = RecoverQuantized(**options).run(original, context)
    assert found.sites.changed == 4
    assert [reason for _, reason in found.sites.skipped] == ["kept by the spec"]
    copy_module(original.module)  # the original is still one that can be copied


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        ([], 8 * 3 * 9 + 8 + 8 * CLASSES + CLASSES),
        (["head.*"], 8 * 3 * 9 + 8),
    ],
)
def test_what_normalization_was_folded_into_is_trained_too(
    tmp_path: Path, freeze: list[str], trained: int
) -> None:
    (tmp_path / "data.py").write_text(
        "import numpy as np\ndef batches():\n    yield {'x': np.random.default_rng(0)"
        ".standard_normal((64, 3, 8, 8)).astype(np.float32)}\n"
    )
    torch.manual_seed(0)
    model = make_eager(
        Convolutions(), {"x": tensor("batch", 3, 8, 8)}, {"batch": dim(1, 4, 64)}, ["logits"]
    )
    (tmp_path / "steps").mkdir()
    context = make_context(tmp_path / "steps", model.signature)
    context = replace(context, base=tmp_path, original=lambda: model)
    options = recover(distill={}, steps=5, batch_size=16, quantize={}, freeze=freeze)
    found = RecoverQuantized(**options).run(model, context)
    assert found.recovery is not None
    assert found.recovery.trained_parameters == trained
    assert found.sites.changed == 2
