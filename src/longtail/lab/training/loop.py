"""The training loop: on one device or many, and always ready to be killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.data import Batch, ImageDataset, Loader, LongTailedSubset, Shard, evaluation_loader, training_loader
from longtail.lab.models.batch_norm import synchronise_batch_norms
from longtail.lab.training.build import build_loss, build_network, build_optimizer, open_data
from longtail.lab.training.checkpoint import load_checkpoint, save_checkpoint
from longtail.lab.training.display import Display
from longtail.lab.training.metrics import ClassifierMetrics
from longtail.lab.training.run_folder import RunFolder
from longtail.lab.training.state import Interrupted, State, Stop, Timer, stop_signals, total

__all__ = ["evaluate_network", "train"]

EVALUATION_BATCH = 500


def train(config: RunConfig, options: RunOptions = RunOptions(), console: Console | None = None) -> Path:
    """Train what ``config`` says, or go on with it, and return its run folder.

    A complete run is left as it is. One that was killed goes on from its last checkpoint, and ends with the same
    weights, bit for bit, as one that was not (on a CPU, with as many threads).

    Args:
        config: what to train.
        options: where and how.
        console: where to show progress.

    Example:
        >>> from dataclasses import replace
        >>> from tempfile import TemporaryDirectory
        >>> from longtail.lab.recipes import cifar
        >>> with TemporaryDirectory() as runs:
        ...     path = train(replace(cifar(epochs=1), model="resnet8"), RunOptions(runs=Path(runs)))
        ...     sorted(file.name for file in path.glob("*.json"))
        ['config.json', 'data.json', 'result.json']
    """
    folder = RunFolder(options.runs / config.run_id)
    if folder.result_file.exists():
        return folder.path
    fabric = make_fabric(config, options)
    console = console if fabric.is_global_zero else None
    # First the data: a run that cannot start leaves no folder.
    dataset, subset = open_data(config, options.data_dir, console)
    with folder.opened(config) if fabric.is_global_zero else contextlib.nullcontext(), stop_signals() as stop:
        _train(config, options, fabric, folder, dataset, subset, console, stop)
    return folder.path


def _train(
    config: RunConfig,
    options: RunOptions,
    fabric: Fabric,
    folder: RunFolder,
    dataset: ImageDataset,
    subset: LongTailedSubset,
    console: Console | None,
    stop: Stop,
) -> None:
    shared: dict[str, Any] = {
        "image_size": config.data.image_size,
        "shard": Shard(fabric.global_rank, fabric.world_size),
        "device": fabric.device,
        "workers": options.workers,
    }
    batch_size, epochs = config.optimizer.batch_size, config.optimizer.epochs
    loader = training_loader(dataset, batch_size, seed=config.seed, augment=config.data.augment, **shared)
    test_loader = evaluation_loader(dataset, EVALUATION_BATCH, **shared)

    torch.manual_seed(config.seed)
    network = build_network(config, dataset)
    if config.sync_batch_norm and fabric.world_size > 1:
        synchronise_batch_norms(network)
    criterion = build_loss(config, dataset.counts).to(fabric.device)
    # Convolutions are faster with the channels of a pixel side by side.
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled: Any = torch.compile(network) if config.compile else network
    model, optimizer = fabric.setup(compiled, build_optimizer(config, network))
    saved, notes = load_checkpoint(folder.path)
    state = State(fabric.device)
    if saved:
        state.restore(saved, network, optimizer, fabric)
    elif fabric.is_global_zero:
        folder.write_data(dataset, subset)
    lines = folder.metrics()[: state.epoch]

    def save() -> None:
        state.check_finite()
        content = state.content(network, optimizer, fabric)
        if fabric.is_global_zero:
            save_checkpoint(folder.path, content)

    display = Display(folder.path if fabric.is_global_zero else None, console, epochs, len(loader), state)
    with display:
        for note in (*dataset.notes, *notes):
            display.say(note)
        while state.epoch < epochs:
            timer, images_seen = Timer(options.checkpoint_minutes), 0
            model.train()
            for batch in loader.epoch(state.epoch, state.step):
                state.rate = config.optimizer.learning_rate_at(state.epoch + state.step / len(loader))
                for group in optimizer.param_groups:
                    group["lr"] = state.rate
                train_step(fabric, model, criterion, optimizer, batch, config.optimizer.micro_batch_size, state)
                images_seen += batch.total
                display.step(state)
                if stop.agreed(fabric, state.step):
                    save()
                    raise Interrupted(f"interrupted in epoch {state.epoch + 1}; the same command goes on from there")
                if timer.is_due(fabric, state.step):
                    save()
            state.check_finite()
            train_seconds = timer.seconds()
            found = evaluate_network(fabric, model, test_loader, ClassifierMetrics(dataset.counts, config.loss.loss))
            loss_of_epoch = total(fabric, state.end_epoch()).item()
            lines.append(
                {
                    "epoch": state.epoch,
                    "train_loss": loss_of_epoch / len(dataset.train),
                    "learning_rate": state.rate,
                    "images_per_second": images_seen / train_seconds,
                    "seconds": timer.seconds(),
                    **found,
                }
            )
            # Before the checkpoint: of one without its line, the line would be missing for ever.
            if fabric.is_global_zero:
                folder.write_metrics(lines)
            save()
            display.epoch(lines)
    if fabric.is_global_zero:
        folder.finish(config, network, lines)
    fabric.barrier()


def train_step(
    fabric: Fabric, model: Any, criterion: nn.Module, optimizer: Any, batch: Batch, micro_size: int | None, state: State
) -> None:
    """Forward, backward, and a step of the optimizer; nothing here waits for the device."""
    # The mean over the samples of all processes: DDP takes the mean over the processes.
    scale = fabric.world_size / batch.total
    pieces = split(batch.images, batch.labels, micro_size)
    for number, (images, labels) in enumerate(pieces, start=1):
        with fabric.no_backward_sync(model, enabled=number < len(pieces)):
            loss = criterion(model(images), labels) * scale
            fabric.backward(loss)
        state.add(loss.detach() / scale)
    optimizer.step()
    optimizer.zero_grad()
    state.step += 1


@torch.no_grad()
def evaluate_network(fabric: Fabric, model: nn.Module, loader: Loader, metrics: ClassifierMetrics) -> dict[str, Any]:
    """How good the model is on the images of the loader, over all processes."""
    model.eval()
    metrics.to(fabric.device)
    for batch in loader.epoch(0):
        if len(batch.labels):
            metrics.update(model(batch.images), batch.labels)
    return metrics.compute()


def split(images: Tensor, labels: Tensor, size: int | None) -> list[tuple[Tensor, Tensor]]:
    """A batch in pieces of at most ``size`` images."""
    if size is None:
        return [(images, labels)]
    return list(zip(torch.split(images, size), torch.split(labels, size), strict=True))


def make_fabric(config: RunConfig, options: RunOptions) -> Fabric:
    """One process, or as many as there are devices, or those that torchrun started."""
    local, world = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    devices: int | str = local or options.devices or "auto"
    if devices == "auto" and not torch.cuda.is_available():
        devices = 1
    nodes = world // local if local else 1
    fabric = Fabric(
        accelerator=options.accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=config.precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric
