"""TorchScript: a frozen graph for torch's own interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from megacompile.engines.torchrunner import TorchRunner, torch_on
from megacompile.models import Scripted, Signature
from megacompile.plan import (
    Availability,
    Backend,
    Fact,
    Lowered,
    Machine,
    Runner,
    Say,
    precision_of,
    silent,
)


class TorchScript(Backend):
    name: ClassVar[str] = "torchscript"
    accepts: ClassVar[tuple[str, ...]] = ("Scripted",)
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    def availability(self, target: Machine) -> Availability:
        return torch_on(target)

    def compile(
        self,
        model: Scripted,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        model.save(out)
        return Lowered(precision_of(facts))

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        loaded = Scripted.load(out, signature)
        loaded.module.to(target.device)
        return TorchRunner(loaded.leaves, target.threads, signature, target.device)
