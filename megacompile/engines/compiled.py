"""A loaded engine as people call it: the original's inputs in, the original's outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megacompile.errors import ModelError
from megacompile.models import Feeds, Signature, is_tensor, put_together, to_torch


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
        given = self._by_name(args, kwargs)
        outputs = self.leaves(given)
        convert = to_torch if _holds_torch(given) else lambda array: array
        assert self.signature.structure is not None
        return put_together(self.signature.structure, lambda name: convert(outputs[name]))

    def leaves(self, given: Mapping[str, Any]) -> Feeds:
        """The same with inputs by name, and output tensors by name, without their nesting."""
        feeds = self.signature.complete(given)
        first = next(iter(feeds.values()))
        self.samples_seen += first.shape[0] if first.ndim else 1
        return self._run(feeds)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = list(self.signature.inputs)
        if len(args) == 1 and not kwargs and _is_all_inputs(args[0], self.signature):
            return dict(args[0])
        if len(args) > len(names):
            raise ModelError(
                what="more inputs than the model takes",
                expected=", ".join(names),
                got=f"{len(args)} inputs",
            )
        given = dict(zip(names, args, strict=False))
        twice = set(given) & set(kwargs)
        if twice:
            raise ModelError(what=f"input '{min(twice)}' is given twice")
        return {**given, **kwargs}


def _is_all_inputs(value: Any, signature: Signature) -> bool:
    """Whether one positional argument is a dict of all inputs, not a first input that is a dict."""
    known = {*signature.inputs, *signature.tensors}
    return isinstance(value, Mapping) and bool(value) and set(value) <= known


def _holds_torch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_torch(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_torch(v) for v in value)
    return is_tensor(value) and hasattr(value, "detach")
