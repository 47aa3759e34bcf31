"""Fit one layer to several: the weights whose answers differ least from theirs.

For linear layers i with weights W_i that see inputs X_i, the W that minimises
sum_i |X_i W^T - X_i W_i^T|^2 is (sum_i W_i G_i)(sum_i G_i)^-1 with G_i = X_i^T X_i: the merged
layer of Jin et al., "Dataless Knowledge Fusion by Merging Weights of Language Models" (2023),
with the bias as one more column. A layer norm is such a layer for each channel: its input is
the normalized value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Inputs that never vary in some direction leave it open: it is settled by the mean of the weights.
RIDGE = 1e-4


def gram_matrices(
    module: torch.nn.Module, names: Iterable[str], runs: Iterable[Callable[[], Any]]
) -> dict[str, torch.Tensor]:
    """X^T X, float64, of the inputs of linear layers and layer norms over all runs.

    For a linear layer [in + 1, in + 1], the last row and column belonging to a constant 1; for a
    layer norm [channels, 2, 2]. `runs` call `module`, which gets hooks meanwhile: give a copy.
    """
    import torch

    found: dict[str, torch.Tensor] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(one: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            value = args[0] if args else next(iter(kwargs.values()))
            gram = _gram(one, value.detach().double())
            found[name] = found[name] + gram if name in found else gram

        return hook

    modules = dict(module.named_modules())
    handles = [
        modules[n].register_forward_hook(hook_of(n), with_kwargs=True)
        for n in names
        if is_fitted(modules[n])
    ]
    try:
        with torch.no_grad():
            for run in runs:
                run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def is_fitted(module: torch.nn.Module) -> bool:
    """Whether a module's parameters are fitted; all others' are averaged."""
    from torch import nn

    if isinstance(module, nn.LayerNorm):
        return len(module.normalized_shape) == 1 and module.elementwise_affine
    return type(module) is nn.Linear


def _gram(module: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
    import torch
    from torch import nn

    if isinstance(module, nn.LayerNorm):
        shape = module.normalized_shape
        value = torch.nn.functional.layer_norm(value, shape, eps=module.eps)
        rows = value.reshape(-1, value.shape[-1])
        pairs = torch.stack([rows, torch.ones_like(rows)])
        return torch.einsum("arc,brc->cab", pairs, pairs)
    rows = value.reshape(-1, value.shape[-1])
    rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    return rows.T @ rows


def fit(modules: list[torch.nn.Module], grams: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters by name of the layer that answers most like all of the given ones."""
    import torch
    from torch import nn

    norm = isinstance(modules[0], nn.LayerNorm)
    rows = [_rows(m) for m in modules]  # [outputs, unknowns], for a layer norm [channels, 1, u]
    unknowns = rows[0].shape[-1]
    grams = [g[..., :unknowns, :unknowns] for g in grams]  # without the constant: no bias to fit
    total = torch.stack(grams).sum(0)
    scale = RIDGE * total.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] + 1e-30
    ridge = scale * torch.eye(unknowns, dtype=total.dtype)
    right = torch.stack(rows).mean(0) @ ridge
    for row, gram in zip(rows, grams, strict=True):
        right = right + row @ gram
    solved = torch.linalg.solve(total + ridge, right.transpose(-1, -2)).transpose(-1, -2)
    if norm:
        solved = solved[:, 0, :]
    given = dict(modules[0].named_parameters(recurse=False))
    width = 1 if norm else given["weight"].shape[1]
    values = {"weight": solved[:, :width].reshape(given["weight"].shape), "bias": solved[:, -1]}
    return {name: values[name].to(p.dtype) for name, p in given.items()}


def _rows(module: torch.nn.Module) -> torch.Tensor:
    """A layer's unknowns per output, the bias last where it has one; float64."""
    import torch

    given = dict(module.named_parameters(recurse=False))
    weight = given["weight"].detach().double()
    norm = weight.dim() == 1
    parts = [weight[:, None] if norm else weight]
    if "bias" in given:
        parts.append(given["bias"].detach().double()[:, None])
    rows = torch.cat(parts, dim=1)
    return rows[:, None, :] if norm else rows
