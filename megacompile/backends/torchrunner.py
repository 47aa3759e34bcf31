"""The runner of all torch engines: leaves in, a tuple of leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megacompile.backendbase import Runner
from megacompile.signature import Signature
from megacompile.tensors import Feeds, to_numpy, to_torch


class TorchRunner(Runner):
    """Calls anything that takes tensor leaves in order and returns output leaves in order."""

    def __init__(self, call: Callable[..., Any], threads: int, signature: Signature) -> None:
        import torch

        torch.set_num_threads(threads)
        self.call: Any = call
        self.signature = signature

    def run(self, feeds: Feeds) -> Feeds:
        outputs = self.prepare(feeds)()
        return dict(zip(self.signature.outputs, map(to_numpy, outputs), strict=True))

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        import torch

        tensors = [to_torch(feeds[name]) for name in self.signature.tensors]
        call = self.call

        def once() -> Any:
            with torch.inference_mode():
                return call(*tensors)

        return once

    def close(self) -> None:
        self.call = None
