"""Training runs and recoveries for the tools people watch them with: TensorBoard files, and
Weights & Biases (offline) where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from megacompile.report import RecoveryRecord, Report, StepFigures

Scalars = dict[str, list[tuple[int, float]]]

TENSORBOARD, WANDB = "tensorboard", "wandb"


def write_events(report: Report, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write the losses and figures of training steps and recoveries under `folder`; the folders
    that were written."""
    runs = _runs(report)
    if not runs:
        return []
    written = [_tensorboard(runs, folder / TENSORBOARD)]
    if importlib.util.find_spec(WANDB) is not None:
        written.append(_wandb(report, runs, folder / WANDB, say))
    return written


def step_scalars(figures: StepFigures) -> Scalars:
    """Tag -> (step, value)s of a training step; a figure of the whole run has one."""
    return {
        "loss": list(enumerate(figures.losses)),
        "step_ms": [(0, figures.step_ms.p50)],
        "peak_memory_mb": [(0, figures.peak_memory_mb)],
        "peak_activation_mb": [(0, figures.peak_activation_mb)],
        "samples_per_second": [(0, figures.samples_per_second)],
    }


def recovery_scalars(record: RecoveryRecord) -> Scalars:
    """Tag -> (step, value)s of a recovery; the user's metrics stand at its first and last step."""
    spacing = record.steps / max(1, len(record.losses))
    found: Scalars = {
        "loss": [(round(number * spacing), value) for number, value in enumerate(record.losses)],
        record.monitor: [(look.step, look.value) for look in record.looks],
    }
    for step, metrics in ((0, record.metric_before), (record.steps, record.metric_after)):
        for name, metric in metrics.items():
            found.setdefault(f"metric/{name}", []).append((step, metric.value))
    return found


def _runs(report: Report) -> dict[str, Scalars]:
    found: dict[str, Scalars] = {}
    if report.training is not None:
        found = {
            "plain": step_scalars(report.training.plain),
            "optimised": step_scalars(report.training.optimised),
        }
    recovered: list[RecoveryRecord] = []
    for one in report.candidates:
        # Candidates that begin with the same passes have one recovery in common.
        if one.recovery is not None and one.recovery not in recovered:
            recovered.append(one.recovery)
            found[f"recover/{one.name}"] = recovery_scalars(one.recovery)
    return found


def _tensorboard(runs: dict[str, Scalars], folder: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(folder, ignore_errors=True)
    for name, scalars in runs.items():
        writer = EventFileWriter(str(folder / name))
        for tag, values in scalars.items():
            for step, value in values:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(step=step, wall_time=float(step), summary=summary))
        writer.close()
    return folder


def _wandb(
    report: Report, runs: dict[str, Scalars], folder: Path, say: Callable[[str], None]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("WANDB_SILENT")
    os.environ["WANDB_SILENT"] = "true"
    try:
        import wandb

        for name, scalars in runs.items():
            run = wandb.init(
                project=report.name,
                name=name,
                dir=str(folder),
                mode="offline",
                config=report.spec,
                reinit=True,
            )
            for step, values in _by_step(scalars).items():
                run.log(values, step=step)  # steps must rise, or it drops them
            run.finish()
    except Exception as error:  # noqa: BLE001 - somebody else's tool must not cost the build
        say(f"Weights & Biases wrote nothing: {type(error).__name__}: {error}")
    finally:
        if before is None:
            del os.environ["WANDB_SILENT"]
        else:
            os.environ["WANDB_SILENT"] = before
    return folder


def _by_step(scalars: Scalars) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for tag, values in scalars.items():
        for step, value in values:
            found.setdefault(step, {})[tag] = value
    return dict(sorted(found.items()))
