"""A pass of one's own, as `digits_custom.yaml` uses it.

A pass is a class whose fields are its options in the spec. It gets a form, here the PyTorch module
before any conversion, and returns a new one; megacompile compares it with the original after it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from megacompile import Eager, Effect, Fact, Pass, PassContext, PassError, PassResult, Sites, select


class FuseConvBatchNorm(Pass[Eager, Eager]):
    """Compute a convolution and the batch normalisation that follows it in a Sequential as one."""

    name: ClassVar[str] = "fuse-conv-batchnorm"
    effect: ClassVar[Effect] = Effect.EXACT  # held to float rounding after every run
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.FLOAT32_WEIGHTS})
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINABLE})  # statistics are gone

    only: tuple[str, ...] = Field(("*",), description="convolutions by name or pattern")

    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        """Replace each pair by one convolution, and the normalisation by nothing."""
        import torch  # here, so that `megacompile plan` need not wait for it
        from torch.nn.utils.fusion import fuse_conv_bn_eval

        copy = model.copy()  # the caller's model stays as it is
        modules = dict(copy.module.named_modules())
        convolutions = [n for n, m in modules.items() if isinstance(m, torch.nn.Conv2d)]
        chosen = select(self.only, convolutions, "only")
        sites = Sites("convolutions")
        for name in convolutions:
            owner, _, key = name.rpartition(".")
            parent = modules[owner]
            follower = str(int(key) + 1) if isinstance(parent, torch.nn.Sequential) else ""
            norm = modules.get(f"{owner}.{follower}" if owner else follower)
            if name not in chosen:
                sites.skip(name, "not named by `only`")
            elif not isinstance(norm, torch.nn.BatchNorm2d) or norm.running_var is None:
                sites.skip(name, "no batch normalisation with statistics follows it")
            else:
                setattr(parent, key, fuse_conv_bn_eval(modules[name], norm))
                setattr(parent, follower, torch.nn.Identity())
                sites.change()
        if not sites.changed:
            raise PassError(
                what="no convolution could be fused",
                got="; ".join(f"{n}: {why}" for n, why in sites.skipped),
                remedy="leave the pass out, or widen `only`",
            )
        return PassResult(copy, sites)
