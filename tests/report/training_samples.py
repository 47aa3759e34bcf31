"""A training report for the tests: a small decoder with some blocks checkpointed."""

from __future__ import annotations

import math

from megacompile.report.figures import Latency, Ratio
from megacompile.report.model import Baseline, Candidate, Gate, Point, Report
from megacompile.report.trained import (
    CheckpointRecord,
    CompileRecord,
    DistributeRecord,
    LargestBatch,
    Operator,
    StepError,
    StepFigures,
    TrainingRecord,
)

from .samples import sample_report

STATE = 811.0


def figures(median: float, activations: float, losses: float) -> StepFigures:
    """A step whose memory rises in the forward pass and falls in the backward pass."""
    curve = [
        (median * at / 60, STATE + activations * math.sin(math.pi * at / 60) ** 2)
        for at in range(61)
    ]
    return StepFigures(
        step_ms=Latency(p50=median, p95=median * 1.1, p99=median * 1.2, mean=median, count=24),
        peak_activation_mb=activations,
        peak_memory_mb=STATE + activations,
        resident_mb=2300.0,
        state_mb={"parameters": 203.0, "gradients": 203.0, "optimizer": 405.0},
        saved_mb={"blocks.0": activations / 3, "blocks.1": activations / 3},
        samples_per_second=8000 / median,
        tokens_per_second=2_048_000 / median,
        waiting=0.012,
        waiting_ms=median * 0.0122,
        data_start_ms=140.0,
        timeline=curve,
        losses=[losses / (1 + at / 10) for at in range(60)],
        operators=[
            Operator(name="aten::mm", ms=median * 0.6, calls=192, share=0.6),
            Operator(name="aten::addmm", ms=median * 0.2, calls=64, share=0.2),
        ],
    )


def training_record() -> TrainingRecord:
    return TrainingRecord(
        plain=figures(3100.0, 1070.0, 5.4),
        optimised=figures(3700.0, 410.0, 5.5),
        step_time_ratio=Ratio(median=1.19, low=1.17, high=1.22),
        memory_ratio=1221 / 1881,
        activation_ratio=410 / 1070,
        gradient=StepError(
            loss=2e-8,
            cosine_min=0.99993,
            worst="blocks.3.wide.weight",
            relative_max=0.012,
            relative_worst="blocks.3.wide.weight",
            after_one=0.0002,
            after_many=0.004,
            many=20,
            parameters=196,
            note="16 gradients are rounding noise and are not compared: "
            "blocks.0.attention.key.bias",
        ),
        largest_batch=LargestBatch(plain=8, optimised=20, limit_mb=1881.0),
        checkpoints=[
            CheckpointRecord(
                block=f"blocks.{n}",
                saved_mb=66.0,
                recompute_ms=61.0 + n,
                chosen=n != 3,
                policy="all" if n != 3 else None,
                why="cheapest to compute again for what it keeps",
            )
            for n in range(4)
        ],
        compile=CompileRecord(
            graphs=2, graph_breaks=1, recompilations=1, reasons=["graph break: print() in forward"]
        ),
        distribute=DistributeRecord(
            strategy="fsdp",
            processes=2,
            reckoning_mb={"parameters": 203.0, "available": 900.0},
            state_mb_by_rank=[406.0, 405.0],
            state_mb_of_one=811.0,
        ),
        recipe={"checkpoints": [{"module": "blocks.0"}]},
        notes=["a note of the run"],
    )


def training_report() -> Report:
    """One candidate beside the plain step."""
    record = training_record()
    report = sample_report()
    dims = {"batch_size": 8}
    plain = Baseline(
        name="plain",
        precision="float32",
        points=[
            Point(dims=dims, latency_ms=record.plain.step_ms, throughput=2.6, peak_memory_mb=1881.0)
        ],
    )
    mine = Candidate(
        name="memory/training",
        variant="memory",
        backend="training",
        status="built",
        points=[
            Point(
                dims=dims,
                latency_ms=record.optimised.step_ms,
                throughput=2.2,
                speedup=Ratio(median=0.84, low=0.82, high=0.85),
                peak_memory_mb=1221.0,
            )
        ],
        size_bytes=203_000_000,
        training=record,
        gates=[Gate(name="peak_memory", limit=0.7, value=0.649, passed=True)],
    )
    return report.model_copy(
        update={
            "name": "gpt_train",
            "winner": "memory/training",
            "verdict": "improved",
            "sentence": "memory/training needs 0.65 of the plain step's peak memory.",
            "baselines": [plain],
            "candidates": [mine],
            "training": record,
            "ceiling": None,
            "warnings": [],
        }
    )
