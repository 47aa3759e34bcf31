"""A loaded engine as people call it: the original's inputs in, the original's outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megacompile.errors import ModelError
from megacompile.signature import Signature
from megacompile.structure import is_tensor, put_together
from megacompile.tensors import Feeds, to_torch


class CompiledModel:
    """Takes the original's inputs, by position or by name, as numpy arrays or torch tensors, and
    returns the original's output in its own nesting; torch tensors if any were given.
    """

    def __init__(self, run: Callable[[Feeds], Feeds], signature: Signature) -> None:
        self._run = run
        self.signature = signature
        self.samples_seen = 0
        """Entries of the first input's first axis, over all calls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once.

        Raises:
            ModelError: an input is missing, unknown, of another dtype, or of a size outside
                the dims the artifact was built for.
        """
        names = list(self.signature.inputs)
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping) and names != ["value"]:
            given = dict(args[0])  # one dict of all inputs
        elif len(args) > len(names):
            raise ModelError(what="more inputs than the model takes",
                             expected=", ".join(names), got=f"{len(args)} inputs")  # fmt: skip
        else:
            given = dict(zip(names, args, strict=False))
            twice = set(given) & set(kwargs)
            if twice:
                raise ModelError(what=f"input '{min(twice)}' is given twice")
            given.update(kwargs)
        feeds = self.signature.complete(given)
        first = next(iter(feeds.values()))
        self.samples_seen += first.shape[0] if first.ndim else 1
        outputs = self._run(feeds)
        convert = to_torch if _holds_torch(given) else lambda array: array
        assert self.signature.structure is not None
        return put_together(self.signature.structure, lambda name: convert(outputs[name]))


def _holds_torch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_torch(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_torch(v) for v in value)
    return is_tensor(value) and hasattr(value, "detach")
