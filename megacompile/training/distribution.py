"""One step over several processes: parameters replicated (DDP) or sharded (FSDP).

Each process takes its own rows of every batch, so that all together see the batch that one
process would; gradients are averaged, as the loss is a mean over samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

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
        )
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
        raise DataError(
            what="a batch does not divide by the processes",
            where="train.batch_size",
            expected=f"a multiple of {processes}",
            got=str(rows),
        )
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


def is_sharded(choice: Distribute | None) -> bool:
    """Whether each process holds a part of every parameter."""
    return choice is not None and choice.strategy == "fsdp" and running()


def own_folder(folder: Path) -> Path:
    """Where this process keeps what it alone has; the folder itself for a single process."""
    return folder / f"rank-{dist.get_rank()}" if running() else folder


def smallest(value: int) -> int:
    """The least of a number over all processes."""
    return _over_all(value, dist.ReduceOp.MIN) if running() else value


def largest(value: int) -> int:
    """The most of a number over all processes."""
    return _over_all(value, dist.ReduceOp.MAX) if running() else value


def _over_all(value: int, how: Any) -> int:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor(int(value), device=device)
    dist.all_reduce(found, how)
    return int(found)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which this process may hold a part; every process must ask."""
    anything: Any = tensor
    found: torch.Tensor = anything.full_tensor() if hasattr(anything, "full_tensor") else tensor
    return found


def local(state: Any) -> Any:
    """Nested state with this process's part in place of every sharded tensor."""
    return pytree.tree_map_only(DTensor, lambda tensor: tensor.to_local(), state)


def fill_shards(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load what `local` gave of a module's state dict: this process's parts, in place.

    Raises:
        ModelError: the state is of another module, or of another number of processes.
    """
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if name not in state or state[name].shape != part.shape:
                raise ModelError(
                    what=f"the stored state doesn't fit '{name}'",
                    expected=f"shape {list(part.shape)}",
                    got=str(list(state[name].shape)) if name in state else "nothing",
                )
            part.copy_(state[name])


def sharded(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state dict out of what `local` gave, sharded as its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def like(parameter: Any, value: Any) -> Any:
        if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
            return value
        if value.shape != parameter.to_local().shape:
            return value  # a count of steps
        return DTensor.from_local(
            value,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    states: dict[Any, dict[str, Any]] = {}
    for number, one in state["state"].items():
        parameter = parameters[int(number)]
        states[number] = {name: like(parameter, value) for name, value in one.items()}
    return {**state, "state": states}


def mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a number over all processes."""
    if running():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value
