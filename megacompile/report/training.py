"""A training report's own part: memory over the step, losses, operators, checkpointed blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megacompile.report import format as fmt
from megacompile.report.charts import Chart, share_chart
from megacompile.report.model import Report
from megacompile.report.pictures import Picture, loss_picture, memory_picture
from megacompile.report.trained import WAITING, StepFigures, TrainingRecord

SHOWN_BLOCKS = 60
SHOWN_OPERATORS = 10


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
    plain, mine, batch = record.plain, record.optimised, record.largest_batch
    time = fmt.speedup(record.step_time_ratio) if record.step_time_ratio else "withheld"
    memory = plain.peak_memory_mb, mine.peak_memory_mb
    activations = plain.peak_activation_mb, mine.peak_activation_mb
    share, share_kept = fmt.times(record.memory_ratio), fmt.times(record.activation_ratio)
    rows = [
        _row("Step time (median)", fmt.milliseconds, plain.step_ms.p50, mine.step_ms.p50, time),
        _row("Peak memory of a step", fmt.megabytes, *memory, share),
        _row("Peak activations of a piece", fmt.megabytes, *activations, share_kept),
        _row("Resident memory of the process", fmt.megabytes, plain.resident_mb, mine.resident_mb),
        _row("Samples per second", fmt.number, plain.samples_per_second, mine.samples_per_second),
    ]
    if plain.tokens_per_second is not None:
        tokens = plain.tokens_per_second, mine.tokens_per_second
        rows.append(_row("Tokens per second", fmt.number, *tokens))
    if batch is not None:
        name = f"Largest batch in {fmt.megabytes(batch.limit_mb)}"
        ratio = fmt.times(batch.optimised / batch.plain) if batch.plain else ""
        rows.append((name, f"{batch.plain:,}", f"{batch.optimised:,}", ratio))
    if plain.waiting is not None:
        rows.append(_row("Waiting for data", fmt.percent, plain.waiting, mine.waiting))
    return rows


def _row(
    name: str,
    show: Callable[[float | None], str],
    plain: float | None,
    optimised: float | None,
    ratio: str = "",
) -> tuple[str, str, str, str]:
    return name, show(plain), show(optimised), ratio


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
        graphs, breaks = (
            fmt.plural(one.graphs, "graph"),
            fmt.plural(one.graph_breaks, "graph break"),
        )
        again = fmt.plural(one.recompilations, "recompilation")
        lines.append(f"Compiled: {graphs}, {breaks}, {again}.")
        lines += one.reasons[:4]
    if record.distribute is not None:
        lines.append(_distributed(record))
    if record.memory_ratio > 1.02:
        ratio = fmt.times(record.memory_ratio)
        lines.append(f"The optimised step needs more memory than the plain one: {ratio}.")
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
    parts = [f"{name} {fmt.megabytes(size)}" for name, size in one.reckoning_mb.items()]
    text = f"{one.strategy.upper()} over {one.processes} processes ({', '.join(parts)})"
    if one.state_mb_by_rank and one.state_mb_of_one:
        most = max(one.state_mb_by_rank)
        share = fmt.times(most / one.state_mb_of_one)
        text += "; parameters, gradients and optimizer state of a process: "
        text += f"{fmt.megabytes(most)}, {share} of one process's"
    return text + "."


def block_rows(record: TrainingRecord) -> list[tuple[str, str, str, str, str]]:
    """Block, what it keeps, what computing it again costs, whether it is, and why."""
    rows = []
    for one in record.checkpoints:
        kept = fmt.megabytes(one.saved_mb or None)
        again = fmt.milliseconds(one.recompute_ms or None)
        policy = (one.policy or "all") if one.chosen else "kept"
        rows.append((one.block, kept, again, policy, one.why or ""))
    return rows


def _operators(name: str, figures: StepFigures) -> Chart | None:
    if not figures.operators:
        return None
    parts = {one.name: one.ms for one in figures.operators[:SHOWN_OPERATORS]}
    whole = max(parts.values())
    title, caption = f"Top operators, {name}", "Own time in one step."
    chart = share_chart(title, caption, parts, fmt.milliseconds, whole)
    rows = []
    for row, one in zip(chart.rows, figures.operators, strict=False):
        note = f"{fmt.percent(one.share, 2)}, {one.calls:,} calls"
        rows.append(replace(row, note=note))
    return Chart(chart.title, chart.caption, rows)
