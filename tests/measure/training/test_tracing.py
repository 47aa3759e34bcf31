"""A form's trace: the same each time, with dropout or without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from megacompile.measure.training.tracing import trace_form, tracer, turn_off_dropout
from tests.training.toy import make_form


def test_a_trace_is_the_same_again_and_leaves_the_form_alone() -> None:
    form = make_form()
    before = {name: one.clone() for name, one in form.module.state_dict().items()}
    one, other = (trace_form(form, 2, form.origin) for _ in range(2))
    assert one.losses == other.losses
    assert one.steps == 2
    assert all(torch.equal(value, before[name]) for name, value in form.module.state_dict().items())
    assert one.losses != trace_form(form, 2, form.origin, dropout=False).losses
    still = make_form(dropout=False)
    assert one.losses != trace_form(still, 2, still.origin).losses


def test_dropout_is_turned_off_wherever_it_is() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5))
    module.append(nn.MultiheadAttention(4, 2, dropout=0.5)).train()
    turn_off_dropout(module)
    x = torch.ones(3, 1, 4)
    assert torch.equal(module[1](module[0](x)), module[1](module[0](x)))
    assert torch.equal(module[2](x, x, x)[0], module[2](x, x, x)[0])


def test_the_request_of_a_crew_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver sends as JSON is enough to take the same steps elsewhere."""
    form = make_form(dropout=False)
    form.save(tmp_path)
    request = {
        "form": str(tmp_path),
        "signature": form.signature.to_dict(),
        "steps": 1,
        "device": "cpu",
        "base": str(form.origin.base),
        "seed": form.origin.seed,
        "model": form.origin.model,
        "train": form.origin.train.model_dump(mode="json"),
        "out": str(tmp_path / "trace.pt"),
    }
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    assert tracer(request)({}) == {}
    found = torch.load(tmp_path / "trace.pt", weights_only=True)
    assert found["losses"] == trace_form(form, 1, form.origin).losses
