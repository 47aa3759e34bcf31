"""Turn an eager module into one to be trained, under the empty recipe."""

from __future__ import annotations

from typing import ClassVar

from megacompile.errors import ModelError
from megacompile.models import Eager
from megacompile.plan import Effect, Fact, Pass, PassContext, Result, Sites, Traits
from megacompile.training import Recipe, Training


class TrainingStep(Pass[Eager, Training]):
    """Take a module as it is: its ties go into the recipe, everything else is the plain step."""

    name: ClassVar[str] = "training-step"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    insertable: ClassVar[bool] = True

    def refusal(self, traits: Traits) -> str | None:
        if traits.backend != "training":
            return "makes a training step, which no inference engine takes"
        return None

    def run(self, model: Eager, ctx: PassContext) -> Result[Training]:
        from megacompile.training.ties import find_ties

        origin = ctx.needs_training(self.name).origin
        own = model.copy()
        sites = Sites("parameter")
        for name, parameter in own.module.named_parameters():
            if parameter.requires_grad:
                sites.change()
            else:
                sites.skip(name, "it has requires_grad=False: it is not trained")
        if not sites.changed:
            raise ModelError(
                what="the model has no parameter to train",
                where=origin.model,
                expected="at least one parameter with requires_grad",
            )
        ties = find_ties(own.module)
        notes = [f"{len(group)} parameters share one storage: {group[0]}" for group in ties]
        made = Training(own.module, model.signature, model.binding, Recipe(ties=ties), origin)
        return Result(made, sites, notes)
