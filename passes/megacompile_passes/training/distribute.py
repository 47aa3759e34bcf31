"""Train in several processes: parameters replicated (DDP) or sharded (FSDP)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Distribute as Choice
from megacompile.training import Training, TrainingContext

SHARE = 0.9  # of a process's memory that a step may plan with
NEEDED = ("parameters", "gradients", "optimizer", "activations")  # what has to fit into it


class Distribute(Pass[Training, Training]):
    """`auto` takes DDP where parameters, gradients, optimizer state and activations fit into one
    process's memory, else FSDP; the reckoning is in the report.

    Every process takes its own rows of a batch; together they compute what one would. Layers
    that look across a batch (batch normalization) and dropout see fewer rows, or other ones.
    """

    name: ClassVar[str] = "distribute"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    processes: int = Field(2, ge=2, le=4096)
    memory_mb: float | None = Field(
        None,
        gt=0,
        description="memory of one process in 10^6 bytes; default: what the device "
        "has, or this machine's divided by the processes",
    )
    blocks: list[str] = Field(
        default_factory=list,
        description="fsdp: modules sharded one by one, names or patterns; "
        "default: the entries of the largest module list",
    )

    @model_validator(mode="after")
    def _blocks_are_sharded(self) -> Self:
        if self.blocks and self.strategy == "ddp":
            raise ValueError("`blocks` are what fsdp shards; ddp keeps every parameter whole")
        return self

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        training = ctx.needs_training(self.name)
        train = training.train
        if model.recipe.distribute is not None:
            raise PassError(what="the step is distributed already", remedy="write distribute once")
        if train.batch_size % (self.processes * train.accumulate):
            raise PassError(
                what="the batch does not divide by processes and accumulation",
                expected=f"a multiple of {self.processes} * {train.accumulate}",
                got=f"batch_size {train.batch_size}",
                remedy="choose a batch_size that is one",
            )
        _refuse_batch_norm(model)
        reckoning = self._reckon(model, training)
        strategy = self.strategy
        if strategy == "auto":
            need = sum(reckoning[part] for part in NEEDED)
            strategy = "ddp" if need <= SHARE * reckoning["available"] else "fsdp"
        blocks = self._blocks(model) if strategy == "fsdp" else []
        choice = Choice(
            strategy=strategy, processes=self.processes, blocks=tuple(blocks), reckoning=reckoning
        )
        sites = Sites("parameter")
        for _ in model.module.parameters():
            sites.change()
        parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in reckoning.items())
        notes = [f"{strategy} over {self.processes} processes; MB of one process: {parts}"]
        return Result(model.with_recipe(model.recipe.edited(distribute=choice)), sites, notes)

    def _reckon(self, model: Training, training: TrainingContext) -> dict[str, int]:
        """Measured bytes of one step in one process, and what a process may use."""
        from megacompile.training.activations import activation_memory
        from megacompile.training.figures import state_bytes

        step = training.step(model, model.recipe.edited(compile=None))
        batch = next(training.batches())
        step.step(batch)
        step.gather(batch)
        state = state_bytes(step)
        # Each process computes its share of the rows.
        activations = activation_memory(step, batch).peak // self.processes
        available = self.memory_mb * 1e6 if self.memory_mb else _memory(training, self.processes)
        return {
            "parameters": state["parameters"] + state["buffers"],
            "gradients": state["gradients"],
            "optimizer": state["optimizer"],
            "activations": activations,
            "available": int(available),
        }

    def _blocks(self, model: Training) -> list[str]:
        from megacompile.training.figures import repeated_blocks

        named = [name for name, _ in model.module.named_modules() if name]
        if self.blocks:
            chosen = select(self.blocks, named, "blocks")
            blocks = [name for name in named if name in chosen]
            if tie := _tie_inside(model, blocks):
                raise PassError(
                    what=f"'{tie}' is shared, so its block can't be sharded by itself",
                    expected="blocks without shared parameters",
                    remedy="leave `blocks` out: the whole model is one unit then",
                )
            return blocks
        blocks = repeated_blocks(model.module)
        # A parameter of two blocks can't be sharded with each of them: the whole is one unit.
        return [] if _tie_inside(model, blocks) else blocks


def _refuse_batch_norm(model: Training) -> None:
    modules = model.module.named_modules()
    found = [n for n, m in modules if type(m).__name__.startswith("BatchNorm")]
    if found:
        raise PassError(
            what=f"'{found[0]}' normalizes over the batch, and every process "
            "would see a part of it",
            expected="layers that treat samples alone",
            got=f"{len(found)} batch normalizations",
            remedy="use LayerNorm or GroupNorm, or SyncBatchNorm in the model",
        )


def _tie_inside(model: Training, blocks: list[str]) -> str | None:
    """A shared parameter that lies in one of the blocks."""
    prefixes = tuple(f"{block}." for block in blocks)
    shared = (name for group in model.recipe.ties for name in group)
    return next((name for name in shared if name.startswith(prefixes)), None)


def _memory(training: TrainingContext, processes: int) -> float:
    if training.device != "cpu":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory)
    import psutil

    return float(psutil.virtual_memory().total) / processes
