"""Figures of one step, measured: memory, where the time goes, and the largest batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from megacompile.training.activations import activation_memory
from megacompile.training.batches import split, to_device
from megacompile.training.loading import Batch
from megacompile.training.memory import SavedBytes, bytes_of, live_memory
from megacompile.training.step import TrainingStep

SHOWN_OPERATORS = 12
SHOWN_REASONS = 8
GROWTH_LIMIT = 64  # times the micro batch: a search must end
MB = 1e6


def state_bytes(step: TrainingStep) -> dict[str, int]:
    """Bytes of what lasts from step to step, each storage once; in this process."""
    optimizer = [value for state in step.optimizer.state.values() for value in state.values()]
    return {
        "parameters": bytes_of(list(step.module.parameters())),
        "buffers": bytes_of(list(step.module.buffers())),
        "gradients": bytes_of([p.grad for p in step.module.parameters() if p.grad is not None]),
        "optimizer": bytes_of(optimizer),
    }


def memory_figures(step: TrainingStep, batch: Batch) -> dict[str, Any]:
    """Peak live memory of a whole step and of a piece's activations, in MB, with a timeline.

    The step has been taken before, so that the optimizer's state is there.
    """
    activations = activation_memory(step, batch)
    step.gather(batch)
    state = state_bytes(step)
    step.optimizer.zero_grad(set_to_none=True)
    lasting = sum(size for name, size in state.items() if name != "gradients")
    lasting += bytes_of(batch)
    live = live_memory(lambda: step.step(batch), step.device)
    return {
        "peak_activation_mb": activations.peak / MB,
        "peak_memory_mb": (lasting + live.peak) / MB,
        "state_mb": {name: size / MB for name, size in state.items() if size},
        "saved_mb": {name: size / MB for name, size in saved_by_block(step, batch).items()},
        "timeline": [(round(at, 3), (lasting + size) / MB) for at, size in live.timeline],
    }


def saved_by_block(step: TrainingStep, batch: Batch) -> dict[str, int]:
    """Bytes that each block keeps for the backward pass; the rest is under an empty name.

    Inside compiled code there are no blocks, and sharded parameters come and go: nothing is told
    apart then.
    """
    if step.recipe.compile is not None or step.recipe.distribute is not None:
        return {}
    piece = step.first_piece(batch)
    saved = SavedBytes(step.module, block_names(step.module), piece)
    with saved.watch():
        loss = step.compute_loss(piece)
    del loss
    return saved.by_module


def block_names(module: torch.nn.Module) -> list[str]:
    """Entries of module lists and sequences that hold several, at the outermost level, and the
    top-level modules beside them."""
    found: list[str] = []

    def look(one: torch.nn.Module, prefix: str) -> None:
        for name, child in one.named_children():
            path = f"{prefix}{name}"
            inside = [inner for inner, _ in child.named_children()]
            if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and len(inside) > 1:
                found.extend(f"{path}.{inner}" for inner in inside)
            elif any(isinstance(inner, torch.nn.ModuleList) for inner in child.modules()):
                look(child, f"{path}.")
            else:
                found.append(path)

    look(module, "")
    return found


def repeated_blocks(module: torch.nn.Module) -> list[str]:
    """The entries of the longest module list or sequence, which has at least two; else none."""
    lists = {
        name: [inner for inner, _ in one.named_children()]
        for name, one in module.named_modules()
        if isinstance(one, (torch.nn.ModuleList, torch.nn.Sequential))
    }
    longest = max(lists, key=lambda name: len(lists[name]), default=None)
    if longest is None or len(lists[longest]) < 2:
        return []
    return [f"{longest}.{name}" if longest else name for name in lists[longest]]


def operators(step: TrainingStep, batch: Batch) -> list[dict[str, Any]]:
    """The operators that took most of one step, by their own time."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    cuda = step.device != "cpu"
    if cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        step.step(batch)
    rows: list[tuple[str, float, int]] = []
    for event in profiler.key_averages():
        one: Any = event
        own = one.self_device_time_total if cuda else one.self_cpu_time_total
        rows.append((one.key, own / 1000, one.count))
    total = sum(ms for _, ms, _ in rows) or 1.0
    rows.sort(key=lambda row: -row[1])
    shown = [row for row in rows[:SHOWN_OPERATORS] if row[1] > 0]
    return [{"name": n, "ms": ms, "calls": calls, "share": ms / total} for n, ms, calls in shown]


def largest_batch(
    step: TrainingStep,
    batch_of: Callable[[int], Batch],
    limit_bytes: float,
    start: int,
    say: Callable[[str], None] = lambda message: None,
) -> int:
    """The most samples that forward and backward take at once within a limit of live bytes.

    Doubled until it doesn't fit, then halved in between; every size is run and measured. The
    state (parameters, gradients, optimizer) counts. 0 if a single sample doesn't fit.
    """
    step.gather(split_one(batch_of(step.train.batch_size), step))
    # As in the step that set the limit: gradients come with the first piece's backward pass, and
    # are there already only when later pieces run.
    state = state_bytes(step)
    later_pieces = step.train.accumulate > 1
    lasting = sum(size for name, size in state.items() if later_pieces or name != "gradients")

    def fits(size: int) -> bool:
        batch = batch_of(size)
        piece = to_device(batch, step.device)

        def once() -> None:
            step.backward(step.compute_loss(piece))

        if step.recipe.compile is not None:
            once()  # another size may be compiled again
        if not later_pieces:
            step.optimizer.zero_grad(set_to_none=True)
        try:
            peak = live_memory(once, step.device).peak
        except RuntimeError as error:
            if "memory" not in str(error).lower():
                raise
            return False
        say(f"{size} samples: {(lasting + bytes_of(batch) + peak) / MB:.0f} MB")
        return lasting + bytes_of(batch) + peak <= limit_bytes

    low, high = 0, 0
    for factor in itertools.count():
        size = start << factor
        if size > start * GROWTH_LIMIT:
            return low
        if fits(size):
            low = size
        else:
            high = size
            break
    # A difference below a twentieth isn't worth another run.
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    step.optimizer.zero_grad(set_to_none=True)
    return low


def split_one(batch: Batch, step: TrainingStep) -> Batch:
    """A batch that divides by the accumulation, unchanged: only that gradients exist."""
    split(batch, step.train.accumulate)
    return batch


def compile_counters() -> dict[str, Any]:
    """Graphs, graph breaks with their reasons, and recompilations in this process so far."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    counted: Mapping[str, Mapping[str, int]] = counters
    breaks = counted.get("graph_break", {})
    graphs = int(counted.get("stats", {}).get("unique_graphs", 0))
    again = [one.recompile_reason for one in get_compilation_metrics() if one.recompile_reason]
    reasons = [f"graph break: {_first_line(reason)}" for reason in breaks]
    reasons += [f"compiled again: {_first_line(reason)}" for reason in dict.fromkeys(again)]
    return {
        "graphs": graphs,
        "graph_breaks": sum(breaks.values()),
        "recompilations": len(again),
        "reasons": reasons[:SHOWN_REASONS],
    }


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
