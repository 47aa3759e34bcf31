"""Options of `fold-batchnorm`: a convolution's weights take over the normalization after it."""

from __future__ import annotations

from typing import ClassVar

from megacompile.plan import Effect, Fact, In, Out, Pass


class FoldBatchNorm(Pass[In, Out]):
    """What all forms of `fold-batchnorm` share; it has no options."""

    name: ClassVar[str] = "fold-batchnorm"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.UNQUANTIZED})
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    cleanup: ClassVar[bool] = True
