"""What the memory passes cost and save on a training spec, measured side by side.

    python benchmarks/memory.py [SPEC] [--batch N] [--memory 0.4] [--rounds 7] [--threads N]
        [--only PART]

Prints ratios to the plain step: activation memory (measured once each: it doesn't vary), step
time (the median of paired ratios over interleaved rounds, with a bootstrap 95 % interval), and the
worst cosine of a parameter's gradient. PARTs: `checkpoint` (a budget, and every k-th block at the
same measured memory), `compress`, `batch` (the largest batch in the plain step's memory), `fsdp`
(what lasts in each of two processes, and their losses). On a busy machine `--threads 1` keeps
threads from waiting for each other.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from megacompile_passes.training.checkpoint.blocks import CheckpointBlocks
from megacompile_passes.training.compress_activations import CompressActivations
from megacompile_passes.training.distribute import Distribute
from megacompile_passes.training.mixed_precision import MixedPrecision

from megacompile.measure.training.crew import Crew
from megacompile.measure.training.tracing import turn_off_dropout
from megacompile.models.signature import Signature, bind
from megacompile.models.source import load_original
from megacompile.plan.passes import PassContext, Traits
from megacompile.spec.load import load_spec
from megacompile.system.machine import cpu_isa
from megacompile.training.activations import activation_memory
from megacompile.training.context import Origin, TrainingContext
from megacompile.training.figures import repeated_blocks, state_bytes
from megacompile.training.form import Training
from megacompile.training.recipe import Checkpoint, Recipe
from megacompile.training.step import TrainingStep
from megacompile.training.ties import find_ties

SPEC = Path(__file__).resolve().parents[1] / "specs" / "gpt_train.yaml"
EVERY = (1, 2)
MOST = 8  # times the plain batch: larger ones take minutes each
SHARDED_STEPS = 5
LASTING = ("parameters", "gradients", "optimizer")


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
    form = Training(
        module,
        eager.signature,
        bind(module.forward, spec.inputs, str(path)),
        Recipe(ties=find_ties(module)),
        origin,
    )
    training = TrainingContext(origin, isa=tuple(cpu_isa()), threads=torch.get_num_threads())
    context = PassContext(
        work=Path(tempfile.mkdtemp()),
        target_threads=training.threads,
        seed=spec.seed,
        traits=Traits("training"),
        calibration=lambda: iter(()),
        examples=lambda which: {},
        training=training,
        base=path.parent,
    )
    return form, context


def race(
    steps: Mapping[str, TrainingStep], batch: dict[str, torch.Tensor], rounds: int
) -> dict[str, list[float]]:
    """Seconds of every step, in shuffled and interleaved rounds."""
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
    return times


def ratio(first: list[float], second: list[float]) -> str:
    """Second over first: the median of paired ratios with its interval."""
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.3f} ({draws[50]:.3f} to {draws[1949]:.3f})"


def cosine(plain: TrainingStep, other: TrainingStep, batch: dict[str, torch.Tensor]) -> float:
    """The worst cosine of a parameter's gradient."""
    gradients = []
    for step in (plain, other):
        torch.manual_seed(0)
        step.gather(batch)
        gradients.append({n: g.clone() for n, g in step.gradients().items()})
        step.optimizer.zero_grad(set_to_none=True)
    first, second = gradients
    return min(cosine_of(first[name], second[name]) for name in first)


def cosine_of(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = one.flatten().double(), other.flatten().double()
    return float(torch.nn.functional.cosine_similarity(a, b, 0))


def checkpoints(form: Training, context: PassContext, memory: float, rounds: int) -> None:
    """A budget, and every k-th block, each at the same measured memory as a budget."""
    assert context.training is not None
    batch = next(context.training.batches())
    plain = form.step()
    base = activation_memory(plain, batch).peak
    print(f"plain step: {base / 1e6:.1f} MB of activations")
    steps, shares = {"plain": plain}, {"plain": 1.0}

    def add(name: str, step: TrainingStep) -> None:
        steps[name], shares[name] = step, activation_memory(step, batch).peak / base

    def budget(name: str, share: float) -> None:
        result = CheckpointBlocks(memory=share).run(form, context)
        add(name, result.model.step())
        policies = Counter(one.policy for one in result.model.recipe.checkpoints)
        shown = ", ".join(f"{n} {policy}" for policy, n in policies.items())
        print(f"{name}: {shown}; {result.notes[-1]}")

    budget(f"budget {memory:g}", memory)
    for k in EVERY:
        named = tuple(Checkpoint(module=name) for name in repeated_blocks(form.module)[::k])
        add(f"every {k}", form.step(form.recipe.edited(checkpoints=named)))
        budget(f"budget of every {k}", min(shares[f"every {k}"] * 1.0001, 0.9999))
    times = race(steps, batch, rounds)
    for name in steps:
        slower = ratio(times["plain"], times[name])
        print(f"{name:<18} memory {shares[name]:.3f}  step time {slower}")
    for k in EVERY:
        slower = ratio(times[f"every {k}"], times[f"budget of every {k}"])
        print(f"budget of every {k} over every {k}, at its memory: step time {slower}")


def compression(form: Training, context: PassContext, rounds: int) -> None:
    """Saved tensors of 8 and of 4 bits: memory, time, and the gradients they cost."""
    assert context.training is not None
    batch = next(context.training.batches())
    steps = {"plain": form.step()}
    for bits in (8, 4):
        steps[f"{bits} bits"] = CompressActivations(bits=bits).run(form, context).model.step()
    base = activation_memory(steps["plain"], batch).peak
    times = race(steps, batch, rounds)
    steps |= {name: form.step(step.recipe) for name, step in steps.items()}  # untrained again
    for name, step in steps.items():
        share = activation_memory(step, batch).peak / base
        print(
            f"{name:<8} memory {share:.3f}  step time {ratio(times['plain'], times[name])}  "
            f"worst gradient cosine {cosine(steps['plain'], step, batch):.6f}"
        )


def largest_batch(form: Training, context: PassContext) -> None:
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
    most = training.train.batch_size * MOST
    while high <= most and peak(high) <= plain:
        low, high = high, high * 2
    while low < most and high - low > max(low // 4, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= plain else (low, middle)
    size = training.train.batch_size
    print(
        f"in the plain step's {plain / 1e6:.1f} MB: batch {size} plain, at least {low} with all "
        f"memory passes ({low / size:.1f} times)"
    )


def sharding(spec: Path, form: Training, context: PassContext) -> None:
    """What lasts from step to step in each of two FSDP processes, and their losses."""
    assert context.training is not None
    training = context.training
    sharded = Distribute(strategy="fsdp").run(form, context).model
    folder = context.work / "sharded"
    folder.mkdir()
    sharded.save(folder)
    plain = form.step()
    turn_off_dropout(plain.module)  # each process would drop other values than one alone
    losses, one = taken(plain, training.batches())
    request = {"folder": str(folder), "spec": str(spec), "batch": training.train.batch_size}
    with Crew(2, training.threads, "memory:rank", request) as crew:
        ranks = crew.ask({})
    lasting = sum(one[name] for name in LASTING)
    for number, rank in enumerate(ranks):
        parts = ", ".join(f"{name} {rank['state'][name] / one[name]:.3f}" for name in LASTING)
        share = sum(rank["state"][name] for name in LASTING) / lasting
        apart = max(abs(a - b) / abs(a) for a, b in zip(losses, rank["losses"], strict=True))
        print(
            f"rank {number}: {share:.3f} of one process's {lasting / 1e6:.1f} MB ({parts}); "
            f"losses over {len(losses)} steps differ by at most {apart:.1e}"
        )


def rank(request: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """A crew's handler: steps of the stored form."""

    def handle(message: Any) -> dict[str, Any]:
        plain, context = load(Path(request["spec"]), request["batch"])
        assert context.training is not None
        step = Training.load(Path(request["folder"]), plain.signature).step()
        turn_off_dropout(step.module)
        losses, state = taken(step, context.training.batches())
        return {"state": state, "losses": losses}

    return handle


def taken(
    step: TrainingStep, batches: Iterator[dict[str, torch.Tensor]]
) -> tuple[list[float], dict[str, int]]:
    """Losses of some steps, and bytes of what lasts, with gradients of one more."""
    losses = [step.step(batch).loss for batch in itertools.islice(batches, SHARDED_STEPS)]
    step.gather(next(batches))
    return losses, state_bytes(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", choices=["checkpoint", "compress", "batch", "fsdp"])
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    form, context = load(given.spec, given.batch)
    if given.only in (None, "checkpoint"):
        checkpoints(form, context, given.memory, given.rounds)
    if given.only in (None, "compress"):
        compression(form, context, given.rounds)
    if given.only in (None, "batch"):
        largest_batch(form, context)
    if given.only in (None, "fsdp"):
        sharding(given.spec.resolve(), form, context)


if __name__ == "__main__":
    main()
