"""Training checkpoints: what goes in comes out, and a damaged one is passed over by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from megacompile.errors import MegacompileError, ModelError
from megacompile.training.checkpoints import REST, TENSORS, Checkpoints

STATE = {
    "module": {"a.weight": torch.arange(6.0).reshape(2, 3)},
    "steps": {0: (1, None, 2.5)},
    "list": [torch.ones(2, dtype=torch.bfloat16), "text", True],
}


def test_state_comes_back_with_types_and_dtypes(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(3, STATE)
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found.number == 3
    assert found.note is None
    assert torch.equal(found.state["module"]["a.weight"], STATE["module"]["a.weight"])
    assert found.state["steps"] == {0: (1, None, 2.5)}
    assert found.state["list"][0].dtype == torch.bfloat16
    assert found.state["list"][1:] == ["text", True]


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 10):
        run.save(number, STATE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-2"]


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "json"])
def test_the_one_before_is_used_and_named(tmp_path: Path, damage: str) -> None:
    run = Checkpoints(tmp_path)
    run.save(1, STATE)
    last = run.save(2, STATE)
    data = (last / TENSORS).read_bytes()
    if damage == "cut":
        (last / TENSORS).write_bytes(data[:-5])
    elif damage == "flip":
        (last / TENSORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "missing":
        (last / TENSORS).unlink()
    else:
        (last / REST).write_text((last / REST).read_text().replace("2.5", "3.5"))
    found = run.latest()
    assert found is not None
    assert found.number == 1
    assert "checkpoint-2" in str(found.note)
    assert "checkpoint-1 is used" in str(found.note)


def test_nothing_whole_is_an_error(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path)
    (run.save(1, STATE) / TENSORS).write_bytes(b"")
    with pytest.raises(ModelError, match="every checkpoint"):
        run.latest()


def test_another_runs_checkpoint_is_not_used(tmp_path: Path) -> None:
    Checkpoints(tmp_path, key="one").save(1, STATE)
    assert Checkpoints(tmp_path, key="two").latest() is None
    assert Checkpoints(tmp_path / "nothing").latest() is None


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Checkpoints(tmp_path)
    run.save(1, STATE)

    def full(tensors: dict[str, torch.Tensor], path: str) -> None:
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(MegacompileError, match="the disk is full"):
        run.save(2, STATE)
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found.number == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]
