"""torch.compile of the training step, or of each of its repeated blocks."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megacompile.errors import PassError
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, select
from megacompile.training import Compile, Training


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
        from megacompile_passes.training.compile_trial import budget_notes, try_step

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
        found, measured = try_step(training, model.with_recipe(recipe))
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
            notes += budget_notes(training, model, choice, self.memory, measured)
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
