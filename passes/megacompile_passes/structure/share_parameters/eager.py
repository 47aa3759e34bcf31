"""`share-parameters` on a module."""

from __future__ import annotations

from collections.abc import Iterator

from megacompile.errors import DataError, PassError
from megacompile.models import Eager, Feeds
from megacompile.plan import PassContext, Result, Sites
from megacompile_passes.modules.isolation import isolated
from megacompile_passes.structure.share_parameters.options import ShareParameters


class ShareParametersEager(ShareParameters[Eager, Eager]):
    """The module with several of its tensors being one."""

    def run(self, model: Eager, ctx: PassContext) -> Result[Eager]:
        from megacompile_passes.modules.wiring import record_wiring
        from megacompile_passes.structure.share_parameters.equality import equal_tensors
        from megacompile_passes.structure.share_parameters.sharing import shared_values
        from megacompile_passes.structure.share_parameters.tying import tied_copy

        if self.mode == "identical":
            ties, sites = equal_tensors(model.module, trainable=ctx.training is None)
            if not ties:
                return Result(model, sites, ["no two tensors are equal"])
            shared = model.with_module(tied_copy(model.module, ties))
            return Result(shared, sites, [_saved(model, shared)])

        probe = isolated(model)
        wirings = record_wiring(probe.module, lambda: probe.call(ctx.examples("typical")))
        sites = Sites("block")
        groups = self._groups(probe.module, wirings, sites)

        def samples() -> Iterator[Feeds]:
            empty = True
            for feeds in ctx.calibration():
                empty = False
                yield feeds
            if empty:
                raise DataError(
                    what="the calibration data is empty",
                    expected="at least one sample",
                    remedy="let data.calibration yield samples",
                )

        ties, remarks = shared_values(probe, groups, self.init, samples, ctx.seed)
        tied = {name for tie in ties for name in tie.names}
        for group in groups:
            for block, names in zip(group.blocks, group.parameters, strict=True):
                if tied.isdisjoint(names):
                    sites.skip(block, "it shares its parameters already")
                else:
                    sites.change()
        if not ties:
            raise PassError(
                what="all named blocks share their parameters already",
                remedy="leave out `share-parameters`",
            )
        shared = model.with_module(tied_copy(model.module, ties))
        notes = ["; ".join(" = ".join(group.blocks) for group in groups)]
        return Result(shared, sites, [*notes, *remarks, _saved(model, shared)])


def _saved(before: Eager, after: Eager) -> str:
    return f"{before.parameters()} parameters before, {after.parameters()} after, by storage"
