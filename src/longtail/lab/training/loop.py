"""The training loop: on one device or many, and always ready to be killed."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
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
        training = Training.new(config, options, fabric, dataset, folder)
        notes = training.resume(subset)
        lines = folder.metrics()[: training.state.epoch]
        with training.display(console) as display:
            for note in (*dataset.notes, *notes):
                display.say(note)
            while training.state.epoch < config.optimizer.epochs:
                lines.append(train_epoch(training, Timer(options.checkpoint_minutes), stop, display))
                # Before the checkpoint: of one without its line, the line would be missing for ever.
                if fabric.is_global_zero:
                    folder.write_metrics(lines)
                training.save()
                display.epoch(lines)
        if fabric.is_global_zero:
            folder.finish(config, training.network, lines)
        fabric.barrier()
    return folder.path


@dataclass(frozen=True)
class Training:
    """What is trained, on what, and how far it is."""

    config: RunConfig
    fabric: Fabric
    dataset: ImageDataset
    folder: RunFolder
    loader: Loader
    test_loader: Loader
    network: nn.Module
    """Whose weights are saved."""
    model: Any
    """The network as it is called: compiled, and over several processes."""
    criterion: nn.Module
    optimizer: Any
    state: State

    @classmethod
    def new(
        cls, config: RunConfig, options: RunOptions, fabric: Fabric, dataset: ImageDataset, folder: RunFolder
    ) -> Training:
        """With new weights."""
        shared: dict[str, Any] = {
            "image_size": config.data.image_size,
            "shard": Shard(fabric.global_rank, fabric.world_size),
            "device": fabric.device,
            "workers": options.workers,
        }
        batch_size, augment = config.optimizer.batch_size, config.data.augment
        torch.manual_seed(config.seed)
        network = build_network(config, dataset)
        if config.sync_batch_norm and fabric.world_size > 1:
            synchronise_batch_norms(network)
        # Convolutions are faster with the channels of a pixel side by side.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        compiled: Any = torch.compile(network) if config.compile else network
        model, optimizer = fabric.setup(compiled, build_optimizer(config, network))
        return cls(
            config=config,
            fabric=fabric,
            dataset=dataset,
            folder=folder,
            loader=training_loader(dataset, batch_size, seed=config.seed, augment=augment, **shared),
            test_loader=evaluation_loader(dataset, EVALUATION_BATCH, **shared),
            network=network,
            model=model,
            criterion=build_loss(config, dataset.counts).to(fabric.device),
            optimizer=optimizer,
            state=State(fabric.device),
        )

    def resume(self, subset: LongTailedSubset) -> list[str]:
        """Go on from the last checkpoint, if there is one, and say what was wrong with others."""
        saved, notes = load_checkpoint(self.folder.path)
        if saved:
            self.folder.check_data(self.dataset, subset)
            self.state.restore(saved, self.network, self.optimizer, self.fabric)
        elif self.fabric.is_global_zero:
            self.folder.write_data(self.dataset, subset)
        return notes

    def save(self) -> None:
        """Write a checkpoint, unless the training has gone astray."""
        self.state.check_finite()
        content = self.state.content(self.network, self.optimizer, self.fabric)
        if self.fabric.is_global_zero:
            save_checkpoint(self.folder.path, content)

    def display(self, console: Console | None) -> Display:
        """For people, from where the training is."""
        path = self.folder.path if self.fabric.is_global_zero else None
        return Display(path, console, self.config.optimizer.epochs, len(self.loader), self.state)


def train_epoch(training: Training, timer: Timer, stop: Stop, display: Display) -> dict[str, Any]:
    """Train on each image once, or on those that are left, and return the epoch's line of metrics."""
    config, fabric, state = training.config, training.fabric, training.state
    images_seen = 0
    training.model.train()
    for batch in training.loader.epoch(state.epoch, state.step):
        state.rate = config.optimizer.learning_rate_at(state.epoch + state.step / len(training.loader))
        for group in training.optimizer.param_groups:
            group["lr"] = state.rate
        train_step(training, batch)
        images_seen += batch.total
        display.step(state)
        if stop.agreed(fabric, state.step):
            training.save()
            raise Interrupted(f"interrupted in epoch {state.epoch + 1}; the same command goes on from there")
        if timer.is_due(fabric, state.step):
            training.save()
    state.check_finite()
    train_seconds = timer.seconds()
    metrics = ClassifierMetrics(training.dataset.counts, config.loss.loss, fabric.device)
    found = evaluate_network(fabric, training.model, training.test_loader, metrics)
    loss_of_epoch = total(fabric, state.end_epoch()).item()
    return {
        "epoch": state.epoch,
        "train_loss": loss_of_epoch / len(training.dataset.train),
        "learning_rate": state.rate,
        "images_per_second": images_seen / train_seconds,
        "seconds": timer.seconds(),
        **found,
    }


def train_step(training: Training, batch: Batch) -> None:
    """Forward, backward, and a step of the optimizer; nothing here waits for the device."""
    fabric, state = training.fabric, training.state
    # The mean over the samples of all processes: DDP takes the mean over the processes.
    scale = fabric.world_size / batch.total
    pieces = split(batch.images, batch.labels, training.config.optimizer.micro_batch_size)
    for number, (images, labels) in enumerate(pieces, start=1):
        with fabric.no_backward_sync(training.model, enabled=number < len(pieces)):
            loss = training.criterion(training.model(images), labels) * scale
            fabric.backward(loss)
        state.add(loss.detach() / scale)
    training.optimizer.step()
    training.optimizer.zero_grad()
    state.step += 1


@torch.no_grad()
def evaluate_network(fabric: Fabric, model: nn.Module, loader: Loader, metrics: ClassifierMetrics) -> dict[str, Any]:
    """How good the model is on the images of the loader, over all processes."""
    model.eval()
    for batch in loader.epoch(0):
        if len(batch.labels):
            metrics.update(model(batch.images), batch.labels)
    return metrics.compute(functools.partial(total, fabric))


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
