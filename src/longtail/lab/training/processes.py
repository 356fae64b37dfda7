"""What the processes of a training do together; a single process runs the same code."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from longtail.lab.config import ConfigError, RunConfig
from longtail.lab.training.run_folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AGREE_EVERY = 10
"""Steps after which several processes ask one another whether to stop or to save."""


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


class Stop:
    """Whether a signal asked the training to end."""

    def __init__(self) -> None:
        self.requested = False
        self.calls = 0

    def agreed(self, fabric: Fabric) -> bool:
        """Whether any process was asked to: one that stopped alone would leave the others waiting."""
        if fabric.world_size == 1:
            return self.requested
        self.calls += 1
        return self.calls % AGREE_EVERY == 0 and bool(
            total(fabric, torch.tensor(float(self.requested), device=fabric.device))
        )


@contextlib.contextmanager
def stop_signals(interrupt: Callable[[], Exception] | None = None) -> Iterator[Stop]:
    """SIGINT and SIGTERM ask to stop after the step; a second SIGINT interrupts at once.

    Args:
        interrupt: what is raised at once, where nothing needs to be finished first.

    Example:
        >>> with stop_signals() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.requested
        True
    """
    stop = Stop()

    def request(number: int, frame: object) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = True
        if interrupt:
            raise interrupt()

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive either
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
