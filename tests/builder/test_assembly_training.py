"""A training build from end to end: its report and views."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.builder.main import Result
from tests.builder.training_world import build
from tests.training.toy import digits


@pytest.mark.slow
def test_the_report_has_the_training_block(built: tuple[Path, Result]) -> None:
    report = json.loads(built[1].report_path.read_text())
    found = report["training"]
    for side in ("plain", "optimised"):
        assert found[side]["step_ms"]["p50"] > 0
        assert 0 < found[side]["peak_activation_mb"] < found[side]["peak_memory_mb"]
        assert len(found[side]["losses"]) == 40
        assert found[side]["losses"][-1] < found[side]["losses"][0]
        assert found[side]["operators"][0]["ms"] > 0
        assert found[side]["timeline"]
        assert 0 <= found[side]["waiting"] <= 1
        assert found[side]["saved_mb"]["blocks.0"] > 0
    assert found["optimised"]["peak_activation_mb"] < found["plain"]["peak_activation_mb"]
    assert found["memory_ratio"] == pytest.approx(
        found["optimised"]["peak_memory_mb"] / found["plain"]["peak_memory_mb"]
    )
    assert 0.9 < found["gradient"]["cosine_min"] < 1
    assert found["gradient"]["worst"] in dict(digits().build().named_parameters())
    assert found["gradient"]["many"] == 3
    assert found["largest_batch"]["optimised"] > found["largest_batch"]["plain"] > 0
    assert found["recipe"] == {"autocast": "bfloat16"}
    assert "training" not in report["baselines"][0]
    gates = {gate["name"]: gate["passed"] for gate in report["candidates"][0]["gates"]}
    assert gates == {"gradient_cosine": True, "metric_drop": True}
    assert report["baselines"][0]["metric"]["accuracy"]["value"] > 0.3, "chance is 0.1"
    assert report["verdict"] == "improved"


@pytest.mark.slow
def test_the_views_show_it(built: tuple[Path, Result]) -> None:
    folder = built[1].report_path.parent
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for words in ("The training step", "Memory over the step", "Loss curves", "Top operators"):
        assert words in page
    for words in ("Peak memory of a step", "Worst gradient", "Largest batch"):
        assert words in page
        assert words in text
    events = sorted(p.parent.name for p in (folder / "tensorboard").rglob("*tfevents*"))
    assert events == ["optimised", "plain"]


@pytest.mark.slow
def test_a_second_build_computes_nothing_again(built: tuple[Path, Result]) -> None:
    folder, first = built
    again = build(folder, folder / "spec.yaml")
    assert [step.cached for step in again.report.candidates[0].steps] == [True, True]
    before, after = first.report.training, again.report.training
    assert before is not None
    assert after is not None
    assert after.optimised.losses == before.optimised.losses
