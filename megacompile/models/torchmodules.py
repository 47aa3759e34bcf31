"""Torch helpers of the forms: copies, unique storages, and the flat calling convention."""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from megacompile.errors import ModelError
from megacompile.models.signature import Binding, Signature
from megacompile.models.structure import take_apart


class Flat(torch.nn.Module):
    """A module that takes tensor leaves in the signature's order and returns output leaves.

    An output that is an input, or the same tensor as another output, is cloned: exporters and
    engines merge or drop such outputs (pytorch/pytorch#167848, #173076).
    """

    def __init__(self, module: torch.nn.Module, signature: Signature, binding: Binding) -> None:
        super().__init__()
        self.module = module
        self._signature = signature
        self._binding = binding
        self.training = module.training

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_name = dict(zip(self._signature.tensors, leaves, strict=True))
        args, kwargs = self._binding.split(self._signature.arguments(by_name.__getitem__))
        value = self.module(*args, **kwargs)
        outputs: list[torch.Tensor] = []
        for tensor in output_leaves(value, self._signature).values():
            known = any(tensor is other for other in (*leaves, *outputs))
            outputs.append(tensor.clone() if known else tensor)
        return tuple(outputs)


def output_leaves(value: Any, signature: Signature) -> dict[str, torch.Tensor]:
    """Output tensors by the signature's names, in its order.

    Raises:
        ModelError: this call returned other leaves than the first one did.
    """
    _, found = take_apart(value)
    if len(found) == len(signature.outputs) and set(found) != set(signature.outputs):
        return dict(zip(signature.outputs, found.values(), strict=True))
    if set(found) != set(signature.outputs):
        raise ModelError(
            what="the model's outputs change from call to call",
            expected=", ".join(signature.outputs),
            got=", ".join(found),
        )
    return {name: found[name] for name in signature.outputs}


def copy_module(
    module: torch.nn.Module, replaced: Mapping[int, torch.Tensor] | None = None
) -> torch.nn.Module:
    """A deep copy, also of modules that hold non-leaf tensors (torch.nn.utils.prune does).

    `replaced` maps ids of tensors to those that the copy holds in their place, wherever they
    are held: as a parameter, in a list of flat weights, in an attribute.
    """
    memo: dict[int, Any] = dict(replaced or {})
    for one in module.modules():
        for value in one.__dict__.values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def unique_storages(tensors: Iterable[torch.Tensor]) -> dict[int, tuple[int, int]]:
    """Elements and bytes by storage address; views of one storage count once."""
    found: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        elements, size = tensor.numel(), tensor.numel() * tensor.element_size()
        before = found.get(address, (0, 0))
        found[address] = (max(before[0], elements), max(before[1], size))
    return found


def script_constants(module: torch.jit.ScriptModule) -> list[torch.Tensor]:
    """Tensors that freezing moved into the graph as constants."""
    try:
        graph: Any = module.inlined_graph
    except RuntimeError:
        return []
    nodes = graph.findAllNodes("prim::Constant")
    return [n.t("value") for n in nodes if n.hasAttribute("value") and n.kindOf("value") == "t"]


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: the disk is full or the file can't be written; the library has an error of its
            own for that.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), str(path))
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def fingerprint(module: torch.nn.Module) -> str:
    """A hash of weights with their ties, of the modules' settings, and of their source files."""
    digest = hashlib.blake2b(digest_size=20)
    addresses: dict[int, int] = {}
    state = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in state:
        address = tensor.untyped_storage().data_ptr()
        tie = addresses.setdefault(address, len(addresses))
        header = f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tie}"
        digest.update(header.encode())
        if tie == len(addresses) - 1:
            data = tensor.detach().cpu().contiguous().flatten()
            digest.update(data.view(torch.uint8).numpy().data if data.numel() else b"")
    sources: set[str] = set()
    for name, one in module.named_modules(remove_duplicate=False):
        digest.update(f"{name} {type(one).__module__}.{type(one).__qualname__}".encode())
        digest.update(repr(_settings(one)).encode())
        if not type(one).__module__.startswith("torch."):
            try:
                sources.add(inspect.getsourcefile(type(one)) or "")
            except TypeError:
                continue
    for path in sorted(sources - {""}):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    """What a module's own attributes say in plain data: sizes, names, flags."""
    plain = (bool, int, float, str, tuple, type(None))
    return {name: value for name, value in sorted(vars(module).items()) if isinstance(value, plain)}
