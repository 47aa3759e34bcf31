"""Which training step wins, and in what words. Pure: figures in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megacompile.builder import judge
from megacompile.builder.gates import least, metric_gate, most, size_gate
from megacompile.measure import AAResult, Measured, RatioInterval, significant
from megacompile.report import (
    Candidate,
    Gate,
    Metric,
    Point,
    Ratio,
    StepFigures,
    TrainingRecord,
    Verdict,
)
from megacompile.spec import Budget, Spec

LESS = 0.98  # a memory ratio above this is no improvement anybody would see


def point_of(
    spec: Spec,
    measured: Measured,
    figures: StepFigures,
    plain: Measured | None,
    check: AAResult | None,
) -> Point:
    """A step as the one benchmark point, so that all views of times show it too."""
    assert spec.train is not None
    size = spec.train.batch_size
    race = judge.Race([{"batch_size": size}], [size], plain, [check])
    [found] = judge.points_of(measured, race, plain)
    found.peak_memory_mb = figures.peak_memory_mb
    return found


def gates_of_training(
    budget: Budget, record: TrainingRecord, candidate: Candidate, plain: Mapping[str, Metric]
) -> list[Gate]:
    """Every limit of the budget held against a measured step. `plain` are the metrics of the
    model that the plain step trained for as many steps."""
    gates: list[Gate] = []
    if budget.metric_drop is not None:
        gates.append(metric_gate(budget.metric_drop, candidate.metric, plain))
    if budget.peak_memory is not None:
        before, after = record.plain.peak_memory_mb, record.optimised.peak_memory_mb
        note = f"{before:.1f} to {after:.1f} MB"
        gates.append(most("peak_memory", budget.peak_memory, record.memory_ratio, note))
    ratio = record.step_time_ratio
    # Without a ratio (the A/A check failed) there is nothing to hold against the limit.
    if budget.step_time is not None and ratio is not None:
        note = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
        gates.append(most("step_time", budget.step_time, ratio.median, note))
    if budget.gradient_cosine is not None:
        found = record.gradient
        gates.append(
            least("gradient_cosine", budget.gradient_cosine, found.cosine_min, found.worst)
        )
    if budget.size_mb is not None:
        gates.append(size_gate(budget.size_mb, candidate))
    return gates


def choose_training(
    candidates: Sequence[Candidate], budget: Budget, check: AAResult | None
) -> tuple[Verdict, str | None, str]:
    """Verdict, winner, and the verdict in one sentence.

    Inside the budget the fastest step wins where memory has a limit, else the one that needs the
    least memory; it must be better than the plain step in one of the two.
    """
    inside = [c for c in candidates if c.status == "built" and c.training is not None]
    if not inside:
        outside = [c for c in candidates if c.status == "outside_budget"]
        if outside:
            return "outside_budget", None, judge.outside_sentence(outside)
        return "failed", None, judge.failed_sentence(candidates)

    def rank(candidate: Candidate) -> float:
        record = candidate.training
        assert record is not None
        if budget.peak_memory is not None:
            return record.optimised.step_ms.p50
        return record.optimised.peak_memory_mb

    best = min(inside, key=rank)
    record = best.training
    assert record is not None
    if budget.step_time is not None and record.step_time_ratio is None:
        why = check.note if check else "it was not measured"
        text = f"Whether a step keeps the budget's step_time can't be said: {why}."
        return "no_improvement", None, text
    floor = check.noise_floor if check else 0.02
    faster = _faster(record.step_time_ratio, floor)
    if not faster and record.memory_ratio > LESS:
        text = (
            f"No candidate needs less memory or time than the plain step; the best, "
            f"{best.name}, needs {_figures(record)}."
        )
        return "no_improvement", None, text
    return "improved", best.name, f"{best.name} needs {_figures(record)}{_more(record)}."


def _faster(ratio: Ratio | None, floor: float) -> bool:
    if ratio is None:
        return False
    speedup = RatioInterval(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
    return significant(speedup, floor) == "faster"


def _figures(record: TrainingRecord) -> str:
    text = (
        f"{record.memory_ratio:.2f} of the plain step's peak memory "
        f"({record.activation_ratio:.2f} of its activations)"
    )
    ratio = record.step_time_ratio
    if ratio is None:
        return text + "; no step time is claimed"
    interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
    return f"{text} and {ratio.median:.2f} times its time ({interval})"


def _more(record: TrainingRecord) -> str:
    parts = [f"the worst gradient has a cosine of {record.gradient.cosine_min:.5f}"]
    if record.largest_batch is not None:
        one = record.largest_batch
        parts.append(f"{one.optimised} samples fit where the plain step takes {one.plain}")
    return "; " + ", ".join(parts)
