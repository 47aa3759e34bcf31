"""Training runs for the tools people watch them with: TensorBoard files, and Weights & Biases
(offline) where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from megacompile.report.model import Report, StepFigures

TENSORBOARD, WANDB = "tensorboard", "wandb"


def write_events(report: Report, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write both steps' losses and figures under `folder`; the folders that were written."""
    record = report.training
    if record is None:
        return []
    runs = {"plain": record.plain, "optimised": record.optimised}
    written = [_tensorboard(runs, folder / TENSORBOARD)]
    if importlib.util.find_spec(WANDB) is not None:
        written.append(_wandb(report, runs, folder / WANDB, say))
    return written


def scalars(figures: StepFigures) -> dict[str, list[float]]:
    """Tag -> values by step; a figure of the whole run has one."""
    return {
        "loss": figures.losses,
        "step_ms": [figures.step_ms.p50],
        "peak_memory_mb": [figures.peak_memory_mb],
        "peak_activation_mb": [figures.peak_activation_mb],
        "samples_per_second": [figures.samples_per_second],
    }


def _tensorboard(runs: dict[str, StepFigures], folder: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(folder, ignore_errors=True)
    for name, figures in runs.items():
        writer = EventFileWriter(str(folder / name))
        for tag, values in scalars(figures).items():
            for step, value in enumerate(values):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(step=step, wall_time=float(step), summary=summary))
        writer.close()
    return folder


def _wandb(
    report: Report, runs: dict[str, StepFigures], folder: Path, say: Callable[[str], None]
) -> Path:
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("WANDB_SILENT")
    os.environ["WANDB_SILENT"] = "true"
    try:
        for name, figures in runs.items():
            run = wandb.init(project=report.name, name=name, dir=str(folder), mode="offline",
                             config=report.spec, reinit=True)  # fmt: skip
            found = scalars(figures)
            for step, loss in enumerate(found.pop("loss")):
                run.log({"loss": loss}, step=step)
            run.summary.update({tag: values[-1] for tag, values in found.items()})
            run.finish()
    except Exception as error:  # noqa: BLE001 - somebody else's tool must not cost the build
        say(f"Weights & Biases wrote nothing: {type(error).__name__}: {error}")
    finally:
        if before is None:
            del os.environ["WANDB_SILENT"]
        else:
            os.environ["WANDB_SILENT"] = before
    return folder
