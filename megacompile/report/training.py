"""A training report's own part: memory over the step, losses, operators, checkpointed blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from megacompile.report import format as fmt
from megacompile.report import svg
from megacompile.report.charts import Chart, Row, axis, share_chart
from megacompile.report.model import WAITING, Report, StepFigures, TrainingRecord

HEIGHT = 120
BINS = 240
SHOWN_BLOCKS = 60
SHOWN_OPERATORS = 10


@dataclass(frozen=True)
class Picture:
    """Two curves over each other with what they show in words."""

    title: str
    caption: str
    drawing: Markup
    axis: Markup
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    """Tone, name, and value of each curve."""


@dataclass(frozen=True)
class TrainingView:
    """All that the HTML page shows of a training record."""

    rows: list[tuple[str, str, str, str]]
    pictures: list[Picture]
    operators: list[Chart]
    blocks: list[tuple[str, str, str, str, str]]
    blocks_rest: str
    lines: list[str]


def training_view(report: Report) -> TrainingView | None:
    """The view of the report's training block; None if there is none."""
    record = report.training
    if record is None:
        return None
    pictures = [memory_picture(record), loss_picture(record)]
    charts = [_operators("plain", record.plain), _operators("optimised", record.optimised)]
    return TrainingView(
        rows=comparison_rows(record),
        pictures=[p for p in pictures if p is not None],
        operators=[chart for chart in charts if chart is not None],
        blocks=block_rows(record)[:SHOWN_BLOCKS],
        blocks_rest=fmt.more(len(record.checkpoints), SHOWN_BLOCKS, "block"),
        lines=remarks(record),
    )


def comparison_rows(record: TrainingRecord) -> list[tuple[str, str, str, str]]:
    """Figure, plain, optimised, and how they compare."""
    plain, mine = record.plain, record.optimised
    ratio = record.step_time_ratio
    time = (
        f"{fmt.times(ratio.median)} [{fmt.number(ratio.low)}, {fmt.number(ratio.high)}]"
        if ratio
        else "withheld"
    )
    rows = [
        (
            "Step time (median)",
            fmt.milliseconds(plain.step_ms.p50),
            fmt.milliseconds(mine.step_ms.p50),
            time,
        ),
        (
            "Peak memory of a step",
            fmt.megabytes(plain.peak_memory_mb),
            fmt.megabytes(mine.peak_memory_mb),
            fmt.times(record.memory_ratio),
        ),
        (
            "Peak activations of a piece",
            fmt.megabytes(plain.peak_activation_mb),
            fmt.megabytes(mine.peak_activation_mb),
            fmt.times(record.activation_ratio),
        ),
        (
            "Resident memory of the process",
            fmt.megabytes(plain.resident_mb),
            fmt.megabytes(mine.resident_mb),
            "",
        ),
        (
            "Samples per second",
            fmt.number(plain.samples_per_second),
            fmt.number(mine.samples_per_second),
            "",
        ),
    ]
    if plain.tokens_per_second is not None:
        rows.append(
            (
                "Tokens per second",
                fmt.number(plain.tokens_per_second),
                fmt.number(mine.tokens_per_second),
                "",
            )
        )
    if record.largest_batch is not None:
        one = record.largest_batch
        limit = fmt.megabytes(one.limit_mb)
        rows.append(
            (
                f"Largest batch in {limit}",
                f"{one.plain:,}",
                f"{one.optimised:,}",
                fmt.times(one.optimised / one.plain) if one.plain else "",
            )
        )
    if plain.waiting is not None:
        rows.append(("Waiting for data", fmt.percent(plain.waiting), fmt.percent(mine.waiting), ""))
    return rows


def remarks(record: TrainingRecord) -> list[str]:
    """Gradients, what the compiler did, how it is distributed, and what was remarked."""
    found = record.gradient
    lines = [
        f"Worst gradient: cosine {fmt.trimmed(found.cosine_min, 7)} ({found.worst}), relative "
        f"error {fmt.number(found.relative_max)} ({found.relative_worst}), of {found.parameters:,} "
        f"parameters; first loss off by {fmt.number(found.loss)}."
    ]
    if found.after_one is not None:
        text = f"Parameters after one step are {fmt.percent(found.after_one)} of the way apart"
        if found.after_many is not None:
            text += f", after {found.many} steps {fmt.percent(found.after_many)}"
        lines.append(text + ".")
    if found.note:
        lines.append(found.note.capitalize() + ".")
    if record.optimised.waiting is not None:
        lines.append(_waiting(record))
    if record.optimised.skipped:
        lines.append(f"{record.optimised.skipped} steps overflowed and were skipped.")
    if record.compile is not None:
        one = record.compile
        lines.append(
            f"Compiled: {fmt.plural(one.graphs, 'graph')}, "
            f"{fmt.plural(one.graph_breaks, 'graph break')}, "
            f"{fmt.plural(one.recompilations, 'recompilation')}."
        )
        lines += one.reasons[:4]
    if record.distribute is not None:
        lines.append(_distributed(record))
    if record.memory_ratio > 1.02:
        lines.append(
            f"The optimised step needs more memory than the plain one: "
            f"{fmt.times(record.memory_ratio)}."
        )
    return lines + record.notes


def _waiting(record: TrainingRecord) -> str:
    """Whether a step waits for data, and what to do then."""
    mine = record.optimised
    share = f"{fmt.percent(mine.waiting)} of its time"
    if (mine.waiting or 0.0) <= WAITING:
        return f"Data: a step does not wait for its batch ({share})."
    text = f"Data: a step waits {fmt.milliseconds(mine.waiting_ms)} for its batch, {share}"
    return f"{text}; to do: {record.waiting_remedy}." if record.waiting_remedy else f"{text}."


def _distributed(record: TrainingRecord) -> str:
    one = record.distribute
    assert one is not None
    reckoning = ", ".join(
        f"{name} {fmt.megabytes(size)}" for name, size in one.reckoning_mb.items()
    )
    text = f"{one.strategy.upper()} over {one.processes} processes ({reckoning})"
    if one.state_mb_by_rank and one.state_mb_of_one:
        share = max(one.state_mb_by_rank) / one.state_mb_of_one
        text += (
            f"; parameters, gradients and optimizer state of a process: "
            f"{fmt.megabytes(max(one.state_mb_by_rank))}, {fmt.times(share)} of one "
            "process's"
        )
    return text + "."


def block_rows(record: TrainingRecord) -> list[tuple[str, str, str, str, str]]:
    """Block, what it keeps, what computing it again costs, whether it is, and why."""
    return [
        (
            one.block,
            fmt.megabytes(one.saved_mb) if one.saved_mb else fmt.MISSING,
            fmt.milliseconds(one.recompute_ms) if one.recompute_ms else fmt.MISSING,
            (one.policy or "all") if one.chosen else "kept",
            one.why or "",
        )
        for one in record.checkpoints
    ]


def memory_picture(record: TrainingRecord) -> Picture | None:
    """Live memory over one step, before and after, on one scale."""
    curves = [record.plain.timeline, record.optimised.timeline]
    if not all(curves):
        return None
    end = max(curve[-1][0] for curve in curves) or 1.0
    top = max(value for curve in curves for _, value in curve) or 1.0
    drawn = [
        svg.area(_binned(curve, end, top), HEIGHT, f"curve {tone}")
        for curve, tone in zip(curves, ("baseline", "winner"), strict=True)
    ]
    peaks = [max(value for _, value in curve) for curve in curves]
    scale = svg.Scale(0.0, end)
    picture = svg.drawing(
        f"Live memory over a step: peak {fmt.megabytes(peaks[0])} before, "
        f"{fmt.megabytes(peaks[1])} after",
        "Memory of live tensors over the time of one step",
        HEIGHT,
        *drawn,
    )
    return Picture(
        "Memory over the step",
        "Live tensors, from zero to the higher peak; the step was watched by a profiler, which "
        "slows it.",
        picture,
        axis(scale, lambda x: x + " ms", "Time"),
        [
            ("baseline", "plain", fmt.megabytes(peaks[0])),
            ("winner", "optimised", fmt.megabytes(peaks[1])),
        ],
    )


def loss_picture(record: TrainingRecord) -> Picture | None:
    """Loss over steps, plain and optimised."""
    curves = [record.plain.losses, record.optimised.losses]
    if any(len(curve) < 2 for curve in curves):
        return None
    values = [value for curve in curves for value in curve if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    drawn = [
        svg.curve([_share(value, low, span) for value in _thinned(curve)], HEIGHT, f"line {tone}")
        for curve, tone in zip(curves, ("baseline", "winner"), strict=True)
    ]
    picture = svg.drawing(
        f"Loss over {len(curves[0])} steps",
        f"from {fmt.number(high)} to {fmt.number(low)}",
        HEIGHT,
        *drawn,
    )
    steps = svg.Scale(1.0, float(len(curves[0])))
    return Picture(
        "Loss curves",
        f"From {fmt.number(low)} at the bottom to {fmt.number(high)} at the top; where only a thin "
        "line in a thick one is seen, both are the same.",
        picture,
        axis(steps, str, "Step"),
        [
            ("baseline", "plain", f"ends at {fmt.number(curves[0][-1], 4)}"),
            ("winner", "optimised", f"ends at {fmt.number(curves[1][-1], 4)}"),
        ],
    )


def _operators(name: str, figures: StepFigures) -> Chart | None:
    if not figures.operators:
        return None
    parts = {one.name: one.ms for one in figures.operators[:SHOWN_OPERATORS]}
    whole = max(parts.values())
    chart = share_chart(
        f"Top operators, {name}", "Own time in one step.", parts, fmt.milliseconds, whole
    )
    rows = [
        Row(
            row.key,
            row.name,
            row.tone,
            row.plot,
            row.value,
            f"{fmt.percent(one.share, 2)}, {one.calls:,} calls",
        )
        for row, one in zip(chart.rows, figures.operators, strict=False)
    ]
    return Chart(chart.title, chart.caption, rows)


def _binned(curve: Sequence[tuple[float, float]], end: float, top: float) -> list[float]:
    """The highest value of each bin of the time axis as a share of `top`; a value holds until
    the next one."""
    bins = [0.0] * (BINS + 1)
    before, at_bin = 0.0, 0
    for moment, value in curve:
        here = min(BINS, int(moment / end * BINS))
        for index in range(at_bin, here + 1):
            bins[index] = max(bins[index], before)
        bins[here] = max(bins[here], value)
        before, at_bin = value, here
    return [value / top * 0.97 for value in bins]


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= BINS:
        return list(values)
    width = len(values) / BINS
    return [values[int(at * width)] for at in range(BINS)] + [values[-1]]


def _share(value: float, low: float, span: float) -> float:
    return min(max((value - low) / span, 0.0), 1.0) * 0.94 + 0.03 if math.isfinite(value) else 0.97
