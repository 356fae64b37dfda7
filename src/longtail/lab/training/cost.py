"""What a training costs, found out before it is paid: memory from one small step, time from another."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longtail.lab.config import ConfigError, RunConfig
from longtail.lab.data import ImageDataset, InMemoryImages, InputSpec
from longtail.lab.training.build import FusedNetwork, Head, build_loss, with_fused_head
from longtail.lab.training.errors import TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STATES = {"sgd": 1, "adamw": 2}
"""Tensors of the size of the weights that the optimizer keeps."""

MOST_FEATURES = 1024
"""With which a head is measured."""

HEADROOM = 1.5
"""Memory of a step over what it keeps for backward: gradients of activations, and what kernels need meanwhile."""


@dataclass(frozen=True)
class Cost:
    """Memory and time of a training, by image."""

    fixed_bytes: float
    """Weights, their gradients and the optimizer's state."""
    image_bytes: float
    """What forward keeps for backward."""
    images_per_second: float
    tested_per_second: float

    def bytes_of(self, images: int) -> float:
        """Memory of a forward and backward pass over this many images."""
        return self.fixed_bytes + HEADROOM * images * self.image_bytes

    def seconds(self, config: RunConfig, train_images: int, test_images: int, epoch: int = 0) -> float:
        """How long the training takes from an epoch on."""
        epochs = config.optimizer.epochs
        tests = sum(config.is_tested_after(each) for each in range(epoch + 1, epochs + 1))
        return (epochs - epoch) * train_images / self.images_per_second + tests * test_images / self.tested_per_second


def measure_inputs(
    config: RunConfig,
    fabric: Fabric,
    dataset: ImageDataset,
    network: nn.Module,
    seconds: float = 0.0,
    photographs: int = 8,
) -> Cost:
    """Memory and time of a network, or of a head alone on features of a frozen backbone."""
    if isinstance(network, Head):
        inputs = torch.zeros(min(MOST_FEATURES, config.optimizer.batch_size), network.fc.in_features)
    else:
        images, size = dataset.train, dataset.input_size
        if size is None and isinstance(images, InMemoryImages):
            inputs = torch.zeros(min(64, config.optimizer.batch_size), *images.images.shape[1:])
        else:
            size = size or InputSpec.input_size
            inputs = torch.zeros(photographs, 3, size, size)
    return measure_cost(config, fabric, network, build_loss(config, dataset.counts), inputs, seconds)


def measure_cost(
    config: RunConfig,
    fabric: Fabric,
    network: nn.Module,
    criterion: nn.Module,
    images: Tensor,
    seconds: float = 0.0,
) -> Cost:
    """Run a few images through a copy of the network; neither the network nor the random numbers change."""
    probe = copy.deepcopy(network).to(fabric.device)
    probe.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    probe.train()
    layout = torch.channels_last if images.ndim == 4 else torch.preserve_format
    images, criterion = images.to(fabric.device, memory_format=layout), criterion.to(fabric.device)
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    trained_as = with_fused_head(config, probe, criterion)
    kept: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in (*probe.parameters(), *probe.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        with fabric.autocast():
            output = trained_as(images, labels) if isinstance(trained_as, FusedNetwork) else trained_as(images)
        (output if isinstance(trained_as, FusedNetwork) else criterion(output.float(), labels)).backward()

    with torch.random.fork_rng(devices=[fabric.device] if fabric.device.type == "cuda" else []):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            step()
        train = _seconds(step, fabric.device, seconds)
        probe.eval()

        @torch.no_grad()
        def look() -> None:
            with fabric.autocast():
                probe(images)

        test = _seconds(look, fabric.device, seconds)
    trained = sum(weight.numel() * weight.element_size() for weight in probe.parameters() if weight.requires_grad)
    fixed = sum(weight.numel() * weight.element_size() for weight in probe.parameters())
    fixed += trained * (1 + STATES[config.optimizer.name])
    return Cost(fixed, sum(kept.values()) / len(images), len(images) / train, len(images) / test)


def _seconds(call: Callable[[], None], device: torch.device, at_least: float) -> float:
    """Of one call, from as many as it takes."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < at_least:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        calls += 1
    return max((time.perf_counter() - began) / calls, 1e-9)


def check_memory(config: RunConfig, cost: Cost, available: float | None, processes: int = 1) -> None:
    """Refuse a batch that cannot fit, and say which micro-batch can."""
    optimizer = config.optimizer
    share = -(-optimizer.batch_size // processes)
    images = min(share, optimizer.micro_batch_size or share)
    needed = cost.bytes_of(images)
    if available is None or needed <= available:
        return
    smaller = images
    while smaller > 1 and cost.bytes_of(smaller) > available:
        smaller //= 2
    fits = cost.bytes_of(smaller) <= available
    advice = f"optimizer.micro_batch_size {smaller} fits" if fits else "choose a smaller model.name or data.image_size"
    raise ConfigError(
        f"a batch of {images} images needs about {_gigabytes(needed)} and {_gigabytes(available)} are free: {advice}"
    )


@contextlib.contextmanager
def enough_memory(config: RunConfig) -> Iterator[None]:
    """Say what to lower where memory ran out all the same."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one; a CPU has no such error
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
            raise
        images = config.optimizer.micro_batch_size or config.optimizer.batch_size
        raise TrainingError(
            f"out of memory with {images} images at a time: lower optimizer.micro_batch_size"
        ) from error


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def available_memory(device: torch.device) -> float | None:
    """Bytes that a training can have, if the system tells."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):  # no Linux
        return None
    try:  # a container may have less
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        cached = next(
            int(line.split()[1])
            for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
            if line.startswith("inactive_file ")
        )
        return free if limit == "max" else min(free, float(limit) - float(used) + cached)
    except (OSError, StopIteration, ValueError):
        return free


def speed(images_per_second: float) -> str:
    """Images per second for people.

    Example:
        >>> speed(1234.5), speed(0.42)
        ('1,234 images/s', '0.4 images/s')
    """
    return f"{images_per_second:,.{0 if images_per_second >= 10 else 1}f} images/s"


def duration(seconds: float) -> str:
    """In words.

    Example:
        >>> duration(4.2), duration(119.7), duration(7300), duration(200_000)
        ('4 s', '2 min 0 s', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    for unit, parts, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {parts}"
    return f"{whole} s"
