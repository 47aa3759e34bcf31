"""What the memory passes cost and save on a training spec, measured side by side.

    python benchmarks/memory.py [SPEC] [--batch N] [--memory 0.4] [--rounds 7] [--only PART]

Prints ratios to the plain step: activation memory (measured once each: it doesn't vary), step
time (the median of paired ratios over interleaved rounds, with a bootstrap 95 % interval), and the
worst cosine of a parameter's gradient. PARTs: `checkpoint` (a budget, and every k-th block at the
same measured memory), `compress`, `batch` (the largest batch in the plain step's memory).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from megacompile_passes.checkpoint import CheckpointBlocks
from megacompile_passes.compress_activations import CompressActivations
from megacompile_passes.mixed_precision import MixedPrecision

from megacompile.forms import Training
from megacompile.measure.machine import cpu_isa
from megacompile.passbase import PassContext, Traits
from megacompile.signature import Signature, bind
from megacompile.source import load_original
from megacompile.spec.load import load_spec
from megacompile.training.activations import activation_memory
from megacompile.training.context import Origin, TrainingContext
from megacompile.training.recipe import Recipe
from megacompile.training.step import TrainingStep
from megacompile.training.ties import find_ties

SPEC = Path(__file__).resolve().parents[1] / "specs" / "gpt_train.yaml"


def load(path: Path, batch: int | None) -> tuple[Training, PassContext]:
    """The model of a spec as a plain training form, and what passes get."""
    loaded = load_spec(path)
    spec = loaded.spec
    assert spec is not None
    assert spec.train is not None
    train = spec.train.model_copy(update={"batch_size": batch} if batch else {})
    eager: Any = load_original(spec, path.parent, Signature(spec.inputs, spec.dims))
    module = eager.module
    origin = Origin(spec.model.reference, path.parent, train, spec.seed)
    form = Training(module, eager.signature, bind(module.forward, spec.inputs, str(path)),
                    Recipe(ties=find_ties(module)), origin)  # fmt: skip
    training = TrainingContext(origin, isa=tuple(cpu_isa()), threads=torch.get_num_threads())
    context = PassContext(
        work=Path(tempfile.mkdtemp()), target_threads=training.threads, seed=spec.seed,
        traits=Traits("training"), calibration=lambda: iter(()), examples=lambda which: {},
        training=training, base=path.parent,
    )  # fmt: skip
    return form, context


def race(
    steps: Mapping[str, TrainingStep], batch: dict[str, torch.Tensor], rounds: int
) -> dict[str, str]:  # fmt: skip
    """Step time over the first one's: paired in shuffled, interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for one in steps.values():
        one.step(batch)
    order = list(steps)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            start = time.perf_counter()
            steps[name].step(batch)
            times[name].append(time.perf_counter() - start)
    first = times[next(iter(steps))]
    found = {}
    for name, values in times.items():
        ratios = [b / a for a, b in zip(first, values, strict=True)]
        draws = sorted(statistics.median(random.choices(ratios, k=len(ratios)))
                       for _ in range(2000))  # fmt: skip
        found[name] = f"{statistics.median(ratios):.3f} ({draws[50]:.3f} to {draws[1949]:.3f})"
    return found


def cosine(plain: TrainingStep, other: TrainingStep, batch: dict[str, torch.Tensor]) -> float:
    """The worst cosine of a parameter's gradient."""
    gradients = []
    for step in (plain, other):
        torch.manual_seed(0)
        step.gather(batch)
        gradients.append({n: g.clone() for n, g in step.gradients().items()})
        step.optimizer.zero_grad(set_to_none=True)
    first, second = gradients
    return min(float(torch.nn.functional.cosine_similarity(
        first[n].flatten().double(), second[n].flatten().double(), 0)) for n in first)  # fmt: skip


def checkpoints(form: Training, context: PassContext, memory: float, rounds: int) -> None:
    assert context.training is not None
    batch = next(context.training.batches())
    plain = form.step()
    base = activation_memory(plain, batch).peak
    print(f"plain step: {base / 1e6:.1f} MB of activations")
    every = {}
    for k in range(1, 9):
        recipe = CheckpointBlocks(every=k).run(form, context).model.recipe
        every[k] = (activation_memory(form.step(recipe), batch).peak / base, recipe)
    budgets = {f"budget {memory:g}": memory}
    budgets |= {f"budget of every {k}": share for k, (share, _) in every.items() if k <= 4}
    steps = {"plain": plain}
    shares = {"plain": 1.0}
    for name, budget in budgets.items():
        result = CheckpointBlocks(memory=min(budget * 1.0001, 0.9999)).run(form, context)
        steps[name] = result.model.step()
        shares[name] = activation_memory(steps[name], batch).peak / base
        chosen = [c.module for c in result.model.recipe.checkpoints]
        print(f"{name}: {len(chosen)} blocks ({', '.join(chosen)}); {result.notes[-1]}")
    for k in range(1, 5):
        steps[f"every {k}"], shares[f"every {k}"] = form.step(every[k][1]), every[k][0]
    for name, ratio in race(steps, batch, rounds).items():
        print(f"{name:<20} memory {shares[name]:.3f}  step time {ratio}")


def compression(form: Training, context: PassContext, rounds: int) -> None:
    assert context.training is not None
    batch = next(context.training.batches())
    steps = {"plain": form.step()}
    for bits in (8, 4):
        steps[f"{bits} bits"] = CompressActivations(bits=bits).run(form, context).model.step()
    base = activation_memory(steps["plain"], batch).peak
    ratios = race(steps, batch, rounds)
    steps |= {name: form.step(step.recipe) for name, step in steps.items()}  # untrained again
    for name, step in steps.items():
        share = activation_memory(step, batch).peak / base
        print(f"{name:<8} memory {share:.3f}  step time {ratios[name]}  worst gradient cosine "
              f"{cosine(steps['plain'], step, batch):.6f}")  # fmt: skip


def largest_batch(form: Training, context: PassContext, memory: float) -> None:
    """All memory passes together: how many samples fit where the plain step's batch does."""
    assert context.training is not None
    training = context.training
    plain = activation_memory(form.step(), next(training.batches())).peak
    passes: list[Callable[[Training], Any]] = [
        lambda f: CheckpointBlocks(every=1).run(f, context),
        lambda f: CompressActivations().run(f, context),
        lambda f: MixedPrecision().run(f, context),
    ]
    for one in passes:
        form = one(form).model
    step = form.step()

    def peak(size: int) -> int:
        return activation_memory(step, next(training.batches(size))).peak

    low, high = training.train.batch_size, training.train.batch_size * 2
    while peak(high) <= plain:
        low, high = high, high * 2
    while high - low > max(low // 8, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= plain else (low, middle)
    size = training.train.batch_size
    print(f"in the plain step's {plain / 1e6:.1f} MB: batch {size} plain, at least {low} with all "
          f"memory passes ({low / size:.1f} times)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["checkpoint", "compress", "batch"])
    given = parser.parse_args()
    form, context = load(given.spec, given.batch)
    if given.only in (None, "checkpoint"):
        checkpoints(form, context, given.memory, given.rounds)
    if given.only in (None, "compress"):
        compression(form, context, given.rounds)
    if given.only in (None, "batch"):
        largest_batch(form, context, given.memory)


if __name__ == "__main__":
    main()
