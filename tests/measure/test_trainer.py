"""A run over two processes that was stopped goes on: each keeps its own part, all agree where."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from megacompile_passes.training.distribute import Distribute

from megacompile.measure.training.crew import Crew
from tests.training.toy import make_context, make_form

STEPS = 5


def runs(request: dict[str, Any]) -> Any:
    """A crew's handler: a run with a checkpoint after each step, stopped after some."""
    from megacompile.measure.trainer import _agreed
    from megacompile.models.signature import Signature
    from megacompile.training import distribution
    from megacompile.training.batches import Batches
    from megacompile.training.checkpoints import Checkpoints
    from megacompile.training.form import Training

    form = Training.load(Path(request["form"]), Signature.from_dict(request["signature"]))
    origin = form.origin

    def handle(message: dict[str, Any]) -> dict[str, Any]:
        run = Checkpoints(distribution.own_folder(Path(message["folder"])), "k")
        step, losses, first = form.step(), [], 0
        found = _agreed(run)
        if found is not None:
            step.load_state_dict(found.state["step"])
            losses, first = list(found.state["losses"]), found.number
        for number, batch in enumerate(Batches(origin.train, origin.base, origin.seed)):
            if number == message["stop"]:
                break
            if number >= first:
                losses.append(step.step(batch).loss)
                run.save(number + 1, {"step": step.state_dict(), "losses": losses})
        return {"losses": losses, "first": first}

    return handle


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_processes_go_on_from_what_all_have(strategy: str, tmp_path: Path) -> None:
    form = make_form()
    options = Distribute.model_validate({"strategy": strategy})
    (tmp_path / "form").mkdir()
    options.run(form, make_context(tmp_path, form)).model.save(tmp_path / "form")
    request = {"form": str(tmp_path / "form"), "signature": form.signature.to_dict()}
    whole, part = str(tmp_path / "whole"), str(tmp_path / "part")
    with Crew(2, 2, f"{__name__}:runs", request, tmp_path / "logs") as crew:
        expected = crew.ask({"folder": whole, "stop": STEPS})
        crew.ask({"folder": part, "stop": 3})
        # As if the first process had been killed before it wrote the last one.
        shutil.rmtree(tmp_path / "part/rank-0/checkpoint-3")
        got = crew.ask({"folder": part, "stop": STEPS})
    for rank in range(2):
        assert got[rank] == {"losses": expected[rank]["losses"], "first": 2}
