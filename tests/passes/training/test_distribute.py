"""Distributed steps: chosen by a reckoning, right over two processes, and small in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megacompile_passes.training.distribute import Distribute
from torch import nn

from megacompile.errors import MegacompileError, ModelError, PassError, WorkerError
from megacompile.measure.training.comparison import broken_step, compare_traces
from megacompile.measure.training.crew import Crew
from megacompile.measure.training.tracing import trace_form
from megacompile.plan.passes import Effect
from megacompile.training.context import Origin
from megacompile.training.recipe import Checkpoint, Recipe
from tests.training.toy import make_context, make_form

HERE = "tests.passes.training.test_distribute"


def run(tmp_path: Path, form: Any, **options: Any) -> Any:
    return Distribute(**options).run(form, make_context(tmp_path, form))


def test_auto_reckons(tmp_path: Path) -> None:
    form = make_form()
    roomy = run(tmp_path, form)
    assert roomy.model.recipe.distribute.strategy == "ddp"
    reckoning = roomy.model.recipe.distribute.reckoning
    assert reckoning["gradients"] == reckoning["parameters"] > 0
    assert reckoning["optimizer"] == pytest.approx(2 * reckoning["parameters"], rel=0.01)
    need = sum(size for part, size in reckoning.items() if part != "available")
    narrow = run(tmp_path, form, memory_mb=need / 1e6)
    assert narrow.model.recipe.distribute.strategy == "fsdp"
    assert narrow.model.recipe.distribute.blocks == tuple(f"blocks.{n}" for n in range(6))
    assert "available" in narrow.notes[0]


def test_ties_across_blocks_make_one_unit(tmp_path: Path) -> None:
    form = make_form()
    form.module.blocks[1].wide.weight = form.module.blocks[0].wide.weight
    form.recipe = Recipe(ties=(("blocks.0.wide.weight", "blocks.1.wide.weight"),))
    assert run(tmp_path, form, strategy="fsdp").model.recipe.distribute.blocks == ()
    with pytest.raises(PassError, match=r"'blocks\.0\.wide\.weight' is shared"):
        run(tmp_path, form, strategy="fsdp", blocks=["blocks.0", "blocks.1"])


def test_what_can_not_be_distributed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="does not divide by processes"):
        run(tmp_path, make_form(), processes=5)

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(image.flatten(1)))

    with pytest.raises(PassError, match="normalizes over the batch"):
        run(tmp_path, make_form(Normalized()))


def test_one_process_can_not_be_two() -> None:
    from megacompile.training.recipe import Distribute as Choice

    with pytest.raises(ModelError) as caught:
        make_form().step(Recipe(distribute=Choice(strategy="ddp", processes=2)))
    assert "torchrun --nproc-per-node 2" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_compute_what_one_does(tmp_path: Path, strategy: Any) -> None:
    form = make_form(batch_size=16, accumulate=2)
    recipe = run(tmp_path, form, strategy=strategy).model.recipe
    # Composed: checkpoints inside, sharding outside.
    recipe = recipe.edited(checkpoints=(Checkpoint(module="blocks.2"),))
    origin: Origin = form.origin
    plain = trace_form(form, 4, origin, dropout=False)
    found = compare_traces(plain, trace_form(form.with_recipe(recipe), 4, origin))
    assert broken_step(found, Effect.EXACT, "float32") is None
    assert found.relative_max < 1e-5


@pytest.mark.slow
def test_losses_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    form = make_form(dropout=False)
    choice = run(tmp_path, form, strategy="fsdp").model
    plain = trace_form(form, 5, form.origin)
    together = trace_form(choice, 5, form.origin)
    assert together.losses == pytest.approx(plain.losses, rel=1e-5)


def state(request: dict[str, Any]) -> Any:
    """A crew's handler: bytes of parameters, gradients and optimizer state in this process."""
    from megacompile.models.signature import Signature
    from megacompile.training.batches import Batches
    from megacompile.training.figures import state_bytes
    from megacompile.training.form import Training

    form = Training.load(Path(request["form"]), Signature.from_dict(request["signature"]))
    step = form.step()
    origin = form.origin

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        if message.get("die"):
            import os

            os._exit(7)
        batch = next(iter(Batches(origin.train, origin.base, origin.seed)))
        step.step(batch)
        step.gather(batch)
        return dict(state_bytes(step))

    return handle


@pytest.mark.slow
def test_fsdp_halves_what_a_process_holds(tmp_path: Path) -> None:
    from megacompile.training.batches import Batches
    from megacompile.training.figures import state_bytes

    form = make_form()
    step = form.step()
    batch = next(iter(Batches(form.origin.train, form.origin.base, 0)))
    step.step(batch)
    step.gather(batch)
    parts = ("parameters", "gradients", "optimizer")
    one = sum(state_bytes(step)[part] for part in parts)
    sharded = run(tmp_path, form, strategy="fsdp").model
    (tmp_path / "form").mkdir()
    sharded.save(tmp_path / "form")
    request = {"form": str(tmp_path / "form"), "signature": form.signature.to_dict()}
    with Crew(2, 2, f"{HERE}:state", request, tmp_path / "logs") as crew:
        by_rank = [sum(found[part] for part in parts) for found in crew.ask({})]
    assert max(by_rank) / one <= 0.55
    assert sum(by_rank) >= one * 0.98


@pytest.mark.slow
def test_a_process_that_ends_is_named(tmp_path: Path) -> None:
    form = make_form()
    (tmp_path / "form").mkdir()
    run(tmp_path, form, strategy="ddp").model.save(tmp_path / "form")
    request = {"form": str(tmp_path / "form"), "signature": form.signature.to_dict()}
    crew = Crew(2, 2, f"{HERE}:state", request, tmp_path / "logs")
    with pytest.raises(WorkerError, match="of 2 ended with code"):
        crew.ask({"die": True})


def broken(request: dict[str, Any]) -> Any:
    raise ModelError(what="no such model", where="here")


@pytest.mark.slow
def test_a_members_error_is_the_drivers(tmp_path: Path) -> None:
    with Crew(2, 2, f"{HERE}:broken", {}, tmp_path) as crew, pytest.raises(MegacompileError) as got:
        crew.ask({})
    assert isinstance(got.value, ModelError)
    assert got.value.where == "here"


def test_blocks_without_sharding_are_refused() -> None:
    with pytest.raises(ValueError, match="`blocks` are what fsdp shards"):
        Distribute(strategy="ddp", blocks=["blocks.0"])
