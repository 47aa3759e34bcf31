"""Event files of a run: TensorBoard's always, Weights & Biases' where it is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from megacompile.builder.events import recovery_scalars, step_scalars, write_events
from megacompile.builder.main import Result
from tests.report.samples import sample_report
from tests.report.test_recovery import record as recovery_record
from tests.report.training_samples import training_record, training_report


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_events(training_report(), tmp_path, print)
    write_events(training_report(), tmp_path, print)  # again: nothing doubles
    record = training_record()
    for name, figures in (("plain", record.plain), ("optimised", record.optimised)):
        found = EventAccumulator(str(tmp_path / "tensorboard" / name)).Reload()
        assert set(found.Tags()["scalars"]) == set(step_scalars(figures))
        losses = [event.value for event in found.Scalars("loss")]
        assert losses == pytest.approx(figures.losses, rel=1e-6)
        assert found.Scalars("step_ms")[0].value == pytest.approx(figures.step_ms.p50)


def test_recoveries_of_either_workload(tmp_path: Path) -> None:
    """One for all candidates that have it in common, with the metrics at its ends."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = sample_report().model_copy(deep=True)
    first, second = report.candidates[:2]
    first.recovery = second.recovery = recovery_record()
    write_events(report, tmp_path, print)
    files = sorted(one.parent for one in tmp_path.rglob("*tfevents*"))
    assert files == [tmp_path / "tensorboard" / "recover" / first.name]
    found = EventAccumulator(str(files[0])).Reload()
    assert set(found.Tags()["scalars"]) == set(recovery_scalars(recovery_record()))
    looks = [(event.step, event.value) for event in found.Scalars("held-out loss")]
    assert looks == [(0, pytest.approx(0.8)), (50, pytest.approx(0.2)), (100, pytest.approx(0.3))]
    metrics = [(event.step, event.value) for event in found.Scalars("metric/recall@1")]
    assert metrics == [(0, pytest.approx(0.124)), (100, pytest.approx(0.351))]


def test_an_inference_report_has_no_events(tmp_path: Path) -> None:
    assert write_events(sample_report(), tmp_path, print) == []
    assert list(tmp_path.iterdir()) == []


def test_weights_and_biases_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    said: list[str] = []
    write_events(training_report(), tmp_path, said.append)
    assert said == []
    runs = sorted((tmp_path / "wandb").rglob("*.wandb"))
    assert len(runs) == 2
    assert all(one.stat().st_size > 0 for one in runs)


def test_weights_and_biases_that_cannot_be_imported_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    said: list[str] = []
    write_events(training_report(), tmp_path / "report", said.append)
    assert "a_module_that_nobody_has" in said[0]
    assert list((tmp_path / "report" / "tensorboard").rglob("*tfevents*"))


@pytest.mark.slow
def test_event_files_hold_the_losses(built: tuple[Path, Result]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = built[1].report_path.parent / "tensorboard" / "optimised"
    events = EventAccumulator(str(folder)).Reload().Scalars("loss")
    losses = json.loads(built[1].report_path.read_text())["training"]["optimised"]["losses"]
    assert [e.value for e in events] == pytest.approx(losses, rel=1e-6)
    assert [e.step for e in events] == list(range(40))
