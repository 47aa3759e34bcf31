"""Calls that blocks get in a model: their arguments, and what they answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MOST_CALLS = 128  # per block: enough for a fit of one block, and they are all held in memory


@dataclass(frozen=True)
class Call:
    """Arguments of one call of a block, and the floats it answered."""

    block: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answers: tuple[torch.Tensor, ...]


def record_calls(
    module: torch.nn.Module, blocks: Sequence[str], runs: Iterable[Callable[[], Any]]
) -> list[Call]:
    """The calls that blocks get in the given runs of `module`, which has hooks meanwhile."""
    import torch
    from torch.utils._pytree import tree_map

    calls: list[Call] = []
    counts = [0] * len(blocks)
    given: list[Any] = []

    def own(value: Any) -> Any:
        # A model may go on in place (`x += block(x)`): what is kept is a copy.
        return value.clone() if isinstance(value, torch.Tensor) else value

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        given.append(tree_map(own, (args, kwargs)))

    def leave_of(index: int) -> Callable[..., None]:
        def leave(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            kept_args, kept_kwargs = given.pop()
            if counts[index] < MOST_CALLS:
                counts[index] += 1
                answers = tree_map(own, floats_of(output))
                calls.append(Call(index, kept_args, kept_kwargs, answers))

        return leave

    handles = []
    for index, name in enumerate(blocks):
        one = module.get_submodule(name)
        handles.append(one.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(one.register_forward_hook(leave_of(index), with_kwargs=True))
    try:
        with torch.no_grad():
            for run in runs:
                run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def floats_of(value: Any) -> tuple[torch.Tensor, ...]:
    """The floating tensors of a nested value."""
    from torch.utils._pytree import tree_leaves

    return tuple(
        t for t in tree_leaves(value) if hasattr(t, "is_floating_point") and t.is_floating_point()
    )
