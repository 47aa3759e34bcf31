"""torch.compile of the training step, or of each of its repeated blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.models import quiet
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Compile, Training

if TYPE_CHECKING:
    import torch

    from megacompile.training import TrainingContext
    from megacompile.training.step import TrainingStep

FITS = 1.1  # a budget is the partitioner's estimate: so much above it is still kept


class CompileStep(Pass[Training, Training]):
    """The step is tried at once: graph breaks and recompilations are counted, and a memory
    budget is held against what is measured."""

    name: ClassVar[str] = "compile"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    what: Literal["step", "blocks"] = Field(
        "step", description="forward and loss as one graph, or each repeated block by itself"
    )
    blocks: list[str] = Field(
        default_factory=list,
        description="with `what: blocks`: names or patterns; default: the "
        "entries of the largest module list",
    )
    memory: float | None = Field(
        None,
        gt=0,
        le=1,
        description="the compiler's activation memory budget: the share of "
        "what it would keep by itself; the rest is computed again",
    )
    full_graph: bool = Field(False, description="a graph break is an error")

    @model_validator(mode="after")
    def _blocks(self) -> Self:
        if self.blocks and self.what != "blocks":
            raise ValueError("`blocks` needs `what: blocks`")
        return self

    def run(self, model: Training, ctx: PassContext) -> Result[Training]:
        training = ctx.needs_training(self.name)
        if model.recipe.compile is not None:
            raise PassError(what="the step is compiled already", remedy="write compile once")
        names = self._names(model) if self.what == "blocks" else []
        choice = Compile(what=self.what, modules=tuple(names), activation_memory_budget=self.memory)
        sites = Sites("block" if names else "step")
        for _ in names or ["step"]:
            sites.change()
        recipe = model.recipe.edited(compile=choice)
        ctx.progress("compiling")
        found, measured = _try(training, model.with_recipe(recipe))
        if self.full_graph and found["graph_breaks"]:
            raise PassError(
                what=f"the step has {found['graph_breaks']} graph breaks",
                expected="one graph, as `full_graph` says",
                cause=next(iter(found["reasons"]), None),
                remedy="change the code there, or use what: blocks",
            )
        if not found["graphs"]:
            raise PassError(
                what="torch.compile made no graph of the step",
                cause=next(iter(found["reasons"]), None),
                remedy="leave 'compile' out",
            )
        notes = [
            f"{found['graphs']} graphs, {found['graph_breaks']} graph breaks, "
            f"{found['recompilations']} recompilations",
            *found["reasons"],
        ]
        if self.memory is not None:
            notes += self._check_memory(training, model, choice, measured)
        return Result(model.with_recipe(recipe), sites, notes)

    def _names(self, model: Training) -> list[str]:
        from megacompile.training.figures import repeated_blocks

        named = [name for name, _ in model.module.named_modules() if name]
        if self.blocks:
            chosen = select(self.blocks, named, "blocks")
            return [name for name in named if name in chosen]
        found = repeated_blocks(model.module)
        if not found:
            raise PassError(
                what="the model has no list of repeated blocks",
                expected="a ModuleList or Sequential with at least two entries",
                remedy="name modules in `blocks`, or use what: step",
            )
        return found

    def _check_memory(
        self, training: TrainingContext, model: Training, choice: Compile, measured: int
    ) -> list[str]:
        """The budget against what was measured, with the compiler's own choice beside it."""
        assert self.memory is not None

        def measure(budget: float | None) -> int:
            other = choice.model_copy(update={"activation_memory_budget": budget})
            return _try(training, model.with_recipe(model.recipe.edited(compile=other)))[1]

        without = measure(None)
        text = f"activations {measured / 1e6:.2f} MB with the budget, {without / 1e6:.2f} without"
        if measured > without:
            raise PassError(
                what=f"a memory budget of {self.memory:g} needs more memory than none",
                got=text,
                remedy="leave `memory` out, or use `checkpoint` with a budget",
            )
        if measured > FITS * self.memory * without:
            notes = [
                f"{text}: the budget of {self.memory:g} is not reached; the compiler counts "
                "kept tensors, and what is measured has temporary ones besides"
            ]
            milder = round((1 + self.memory) / 2, 2)
            needs = measure(milder)
            if needs < measured:
                notes.append(
                    f"less budget needs more memory here: {milder:g} needs {needs / 1e6:.2f} MB"
                )
            return notes
        return [text]


def _try(training: TrainingContext, model: Training) -> tuple[dict[str, Any], int]:
    """Compile by running one batch; what the compiler counted, and the activations' peak."""
    import torch._dynamo

    from megacompile.training.activations import activation_memory
    from megacompile.training.figures import compile_counters

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    step: TrainingStep = training.step(model)
    batch: dict[str, torch.Tensor] = next(training.batches())
    try:
        with quiet():
            peak = activation_memory(step, batch).peak
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise PassError(
            what="torch.compile fails on the step",
            cause=f"{type(error).__name__}: {lines[0] if lines else ''}",
            remedy="use what: blocks, or leave 'compile' out",
        ) from error
    return compile_counters(), peak
