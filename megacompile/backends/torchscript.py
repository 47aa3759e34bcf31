"""TorchScript: a frozen graph for torch's own interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from megacompile.backendbase import Availability, Backend, Lowered, Machine, Runner, precision_of
from megacompile.backends.torchrunner import TorchRunner
from megacompile.forms import Scripted
from megacompile.passbase import Fact
from megacompile.signature import Signature


class TorchScript(Backend):
    name: ClassVar[str] = "torchscript"
    accepts: ClassVar[tuple[str, ...]] = ("Scripted",)
    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    def availability(self, target: Machine) -> Availability:
        return Availability()

    def compile(
        self, model: Scripted, target: Machine, facts: frozenset[Fact], out: Path
    ) -> Lowered:
        model.save(out)
        return Lowered(precision_of(facts))

    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        loaded = Scripted.load(out, signature)
        return TorchRunner(loaded.leaves, target.threads, signature)
