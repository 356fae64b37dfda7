"""What the processes of a training do together; a single process runs the same code."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from longtail.lab.config import ConfigError, RunConfig
from longtail.lab.training.run_folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["computed_by_first", "gathered", "make_fabric", "opened_by_first", "share_buffers", "total"]


def make_fabric(config: RunConfig, accelerator: str, wanted: int | None = None) -> Fabric:
    """One process, or as many as there are devices, or those that torchrun started; heads are trained in float32."""
    # Slow to import: only who trains waits for it.
    from lightning_fabric import Fabric

    local, world = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    devices: int | str = local or wanted or "auto"
    if devices == "auto" and not torch.cuda.is_available():
        devices = 1
    nodes = world // local if local else 1
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            precision="32-true" if config.model.freeze else config.precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"accelerator {accelerator} cannot be used: {' '.join(str(error).split())}") from None
    fabric.launch()
    if distributed.is_available() and distributed.is_initialized():
        # Fabric does this for NCCL alone. Gloo's threads that let go of a tensor while Python ends abort the process.
        atexit.register(_leave_group)
    return fabric


def _leave_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def total(fabric: Fabric, value: Tensor) -> Tensor:
    """The sum over all processes."""
    summed = fabric.all_reduce(value.clone(), reduce_op="sum")  # which changes what it is given
    assert isinstance(summed, Tensor)
    return summed


def gathered(fabric: Fabric, values: Tensor) -> Tensor:
    """The vectors of all processes, one after another; they may differ in length."""
    if fabric.world_size == 1:
        return values
    lengths = fabric.all_gather(torch.tensor([len(values)], device=values.device)).flatten().tolist()  # type: ignore[union-attr]
    padded = F.pad(values, (0, max(lengths) - len(values)))
    parts = fabric.all_gather(padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _in_first(fabric: Fabric, call: Callable[[], object]) -> None:
    """Do something in the first process; what goes wrong there ends all of them."""
    problem: Exception | None = None
    if fabric.is_global_zero:
        try:
            call()
        except Exception as error:
            problem = error
    if problem := fabric.broadcast(problem):
        raise problem


def computed_by_first(fabric: Fabric, compute: Callable[[], None]) -> None:
    """Compute something in the first process, and then load it in the others."""
    _in_first(fabric, compute)
    if not fabric.is_global_zero:
        compute()


@contextlib.contextmanager
def opened_by_first(folder: RunFolder, config: RunConfig, fabric: Fabric) -> Iterator[None]:
    """The folder for the first process; one that it cannot have ends all of them."""
    with contextlib.ExitStack() as stack:
        _in_first(fabric, lambda: stack.enter_context(folder.opened(config)))
        yield


def share_buffers(fabric: Fabric, network: nn.Module) -> None:
    """Give all processes the batch norms' statistics of the first one, which are those that are saved."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            buffer.copy_(fabric.broadcast(buffer))
