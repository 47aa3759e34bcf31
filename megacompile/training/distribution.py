"""One step over several processes: parameters replicated (DDP) or sharded (FSDP).

Each process takes its own rows of every batch, so that all together see the batch that one
process would; gradients are averaged, as the loss is a mean over samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from megacompile.errors import DataError, ModelError
from megacompile.training.batches import rows_of
from megacompile.training.loading import Batch
from megacompile.training.recipe import Distribute


def running() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized()


def distribute(module: nn.Module, choice: Distribute | None, device: str) -> nn.Module:
    """The module as this process runs it; itself without a choice, or with one process.

    Raises:
        ModelError: the processes are not there.
    """
    if choice is None or (choice.processes == 1 and not running()):
        return module
    if not running() or dist.get_world_size() != choice.processes:
        raise ModelError(
            what=f"the step is made for {choice.processes} processes",
            got=f"{dist.get_world_size() if running() else 1} running",
            remedy=f"start it with torchrun --nproc-per-node {choice.processes}, after "
            "torch.distributed.init_process_group()",
        )  # fmt: skip
    if choice.strategy == "ddp":
        devices = [torch.device(device)] if device != "cpu" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=devices)
    from torch.distributed.fsdp import fully_shard

    known = dict(module.named_modules())
    for name in choice.blocks:
        fully_shard(known[name])
    fully_shard(module)
    return module


def own_part(batch: Mapping[str, torch.Tensor], choice: Distribute | None) -> Batch:
    """This process's rows of a batch.

    Raises:
        DataError: the rows don't divide by the processes.
    """
    if choice is None or not running():
        return dict(batch)
    rows, processes, rank = rows_of(batch), dist.get_world_size(), dist.get_rank()
    if rows % processes:
        raise DataError(what="a batch does not divide by the processes", where="train.batch_size",
                        expected=f"a multiple of {processes}", got=str(rows))  # fmt: skip
    part = rows // processes
    return {name: tensor[rank * part : (rank + 1) * part] for name, tensor in batch.items()}


@contextlib.contextmanager
def synchronised(model: nn.Module, last: bool) -> Iterator[None]:
    """Gradients travel between processes with the last piece of a batch only."""
    anything: Any = model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with contextlib.nullcontext() if last else model.no_sync():
            yield
        return
    if hasattr(model, "set_requires_gradient_sync"):
        anything.set_requires_gradient_sync(last)
    yield


def mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a number over all processes."""
    if running():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value
