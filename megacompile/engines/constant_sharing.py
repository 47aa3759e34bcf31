"""Constants of a compiled graph that are equal become one.

Freezing packs a weight once per use: layers that share a weight would each store a copy of it.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

SMALLEST_BYTES = 1024
"""Smaller constants cost nothing; some are told apart by name."""


class ShareEqualConstants(CustomGraphPass):
    """Point all nodes that read equal constants (same bytes, shape and layout) at one of them."""

    def __call__(self, graph: torch.fx.graph.Graph) -> None:
        module = graph.owning_module
        if module is None:
            return
        first: dict[Any, torch.fx.Node] = {}
        for node in list(graph.nodes):
            if node.op != "get_attr":
                continue
            value = getattr(module, str(node.target), None)
            if not isinstance(value, torch.Tensor) or (key := _key(value)) is None:
                continue
            kept = first.setdefault(key, node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                graph.erase_node(node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _key(value: torch.Tensor) -> Any:
    """What two equal constants have in common; None for what is too small or can't be read.

    A packed weight is opaque: its bytes are read where they lie. The digest is long enough to
    stand for them.
    """
    operators: Any = torch.ops.mkldnn
    if value.is_mkldnn:
        size, address = int(operators._nbytes(value)), int(operators.data_ptr(value))
        layout: Any = "packed"
    elif value.device.type == "cpu" and value.layout is torch.strided and value.is_contiguous():
        size, address = value.numel() * value.element_size(), value.data_ptr()
        layout = value.stride()
    else:
        return None
    if size < SMALLEST_BYTES:
        return None
    data = (ctypes.c_char * size).from_address(address)
    digest = hashlib.blake2b(data, digest_size=32).digest()
    return (digest, size, value.dtype, tuple(value.shape), layout)
