"""The training loop: on one device or many, and always ready to be killed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor, nn

from longtail._checks import check_positive_integer
from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.data import (
    Batch,
    ImageDataset,
    Loader,
    LongTailedSubset,
    Shard,
    evaluation_loader,
    training_loader,
)
from longtail.lab.models.batch_norm import synchronise_batch_norms
from longtail.lab.training.build import (
    build_loss,
    build_network,
    build_optimizer,
    build_order,
    input_size,
    open_data,
    probe_images,
)
from longtail.lab.training.checkpoint import load_checkpoint, save_checkpoint
from longtail.lab.training.cost import (
    Cost,
    available_memory,
    check_memory,
    duration,
    enough_memory,
    measure_cost,
)
from longtail.lab.training.display import Display
from longtail.lab.training.errors import Interrupted, TrainingError
from longtail.lab.training.metrics import ClassifierMetrics
from longtail.lab.training.processes import make_fabric, opened_by_first, share_buffers, total
from longtail.lab.training.run_folder import RunFolder
from longtail.lab.training.state import ADVICE, State, Stop, Timer, stop_signals
from longtail.schedules import DeferredReweighting

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["evaluate_network", "train"]

EVALUATION_BATCH = 500
FEW_STEPS = 3


def train(
    config: RunConfig,
    options: RunOptions = RunOptions(),
    console: Console | None = None,
    devices: int | None = None,
) -> Path:
    """Train a configuration, or resume it, and return its run folder.

    A complete run is left as it is. An interrupted one resumes from its last checkpoint and ends with the same weights,
    bit for bit, as one that was not interrupted (on a CPU, with as many threads).

    Args:
        config: what to train.
        options: where and how.
        console: where to show progress.
        devices: how many processes, each with its GPU or its part of the CPU; by default one for each GPU, or one. With
            torchrun, it decides.

    Example:
        >>> from dataclasses import replace
        >>> from tempfile import TemporaryDirectory
        >>> from longtail.lab.config import ModelConfig
        >>> from longtail.lab.recipes import cifar
        >>> with TemporaryDirectory() as runs:
        ...     path = train(replace(cifar(epochs=1), model=ModelConfig(name="resnet8")), RunOptions(runs=Path(runs)))
        ...     sorted(file.name for file in path.glob("*.json"))
        ['config.json', 'data.json', 'result.json']
    """
    if devices is not None:
        check_positive_integer("devices", devices)
    if config.is_identified and (done := _complete(config, options, console)):
        return done  # without opening the data
    # First the data: a run that cannot start leaves no folder, and says why once, before it starts other processes.
    dataset, subset, config = open_data(config, options.data_dir, console)
    if done := _complete(config, options, console):
        return done
    network = build_network(config, dataset)  # refuses initial weights that do not fit
    folder = RunFolder(options.runs / config.run_id)
    fabric = make_fabric(config.precision, options.accelerator, devices)
    console = console if fabric.is_global_zero else None
    cost = measure_cost(config, fabric, network, build_loss(config, dataset.counts), probe_images(config, dataset))
    check_memory(config, cost, available_memory(fabric.device), fabric.world_size)
    with enough_memory(config), folder.written(), opened_by_first(folder, config, fabric), stop_signals() as stop:
        if fabric.world_size == 1 and folder.result_file.exists():
            return folder.path  # another process has finished it since
        training = Training.new(config, options, fabric, dataset, folder)
        notes = [*dataset.notes, *training.resume(subset)]
        lines = folder.metrics(training.state.epoch)
        with training.display(console) as display:
            for note in (*notes, describe(config, dataset, cost, training.state.epoch, fabric.world_size)):
                display.say(note)
            while training.state.epoch < config.optimizer.epochs:
                lines.append(train_epoch(training, Timer(options.checkpoint_minutes), stop, display))
                # Both before the checkpoint: what is not there when it is written would be missing for ever.
                if fabric.is_global_zero:
                    folder.write_metrics(lines)
                display.epoch(lines)
                training.save()
        if fabric.is_global_zero:
            folder.finish(config, training.network, lines, fabric.world_size)
        fabric.barrier()
    return folder.path


def describe(config: RunConfig, dataset: ImageDataset, cost: Cost, epoch: int, world_size: int) -> str:
    """What is about to be trained, and how long it takes here."""
    train, test = len(dataset.train), len(dataset.test)
    seconds = cost.seconds(config, train, test, epoch) / world_size
    left = f"{config.optimizer.epochs - epoch} epochs" + (" left" if epoch else "")
    return (
        f"{dataset.name}: {train:,} training and {test:,} test images, {len(dataset.classes):,} classes; "
        f"{config.model.name}, {config.title}; {left}: about {duration(seconds)} "
        f"({world_size * cost.images_per_second:,.0f} images/s)"
    )


def _complete(config: RunConfig, options: RunOptions, console: Console | None) -> Path | None:
    folder = RunFolder(options.runs / config.run_id)
    if folder.result() is None:
        return None
    if console:
        console.print(f"{folder.path} is already complete", soft_wrap=True)
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
            "image_size": input_size(config),
            "shard": Shard(fabric.global_rank, fabric.world_size),
            "device": fabric.device,
            "workers": options.workers,
        }
        augment, order = config.data.augment, build_order(config, dataset)
        mixing: dict[str, Any] = {"mixup": config.data.mixup, "cutmix": config.data.cutmix}
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
            loader=training_loader(
                dataset,
                config.optimizer.batch_size,
                seed=config.seed,
                order=order,
                augment=augment,
                **mixing,
                **shared,
            ),
            test_loader=evaluation_loader(dataset, EVALUATION_BATCH, **shared),
            network=network,
            model=model,
            criterion=build_loss(config, dataset.counts).to(fabric.device),
            optimizer=optimizer,
            state=State(fabric.device),
        )

    def resume(self, subset: LongTailedSubset) -> list[str]:
        """Resume from the last checkpoint, if there is one, and say what was wrong with others."""
        # One after another: the first process moves damaged ones out of the way.
        if self.fabric.is_global_zero:
            saved, notes = load_checkpoint(self.folder.path, State.check)
        self.fabric.barrier()
        if not self.fabric.is_global_zero:
            saved, notes = load_checkpoint(self.folder.path, State.check)
        if saved and self.folder.data_file.exists():
            self.folder.check_data(self.dataset, subset, self.config)
        elif self.fabric.is_global_zero:
            self.folder.write_data(self.dataset, subset, self.config)
        if saved:
            try:
                self.state.restore(saved, self.network, self.optimizer, self.fabric)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(f"the checkpoint in {self.folder.path} is of another network: {reason}") from None
        if self.state.epoch or self.state.step:
            notes.append(f"resuming in epoch {self.state.epoch + 1} of {self.config.optimizer.epochs}")
        elif len(self.loader) < FEW_STEPS:
            size = self.config.optimizer.batch_size
            notes.append(
                f"only {len(self.loader)} steps an epoch: {len(self.dataset.train):,} images are few for a batch size "
                f"of {size:,}"
            )
        return notes

    def save(self) -> None:
        """Write a checkpoint, unless the training has gone astray."""
        self.state.check_finite(self.fabric)
        content = self.state.content(self.network, self.optimizer, self.fabric)
        if self.fabric.is_global_zero:
            self.folder.check_held()
            save_checkpoint(self.folder.path, content)

    def display(self, console: Console | None) -> Display:
        """For people, from where the training is."""
        path = self.folder.path if self.fabric.is_global_zero else None
        return Display(path, console, self.config.optimizer.epochs, len(self.loader), self.state)


def train_epoch(training: Training, timer: Timer, stop: Stop, display: Display) -> dict[str, Any]:
    """Train on each image once, or on those that are left, and return the epoch's line of metrics."""
    config, fabric, state = training.config, training.fabric, training.state
    images_seen = 0
    training.model.train(not config.model.freeze)  # norms of a frozen backbone keep their statistics, too
    for batch in training.loader.epoch(state.epoch, state.step):
        now = state.epoch + state.step / len(training.loader)
        state.rate = config.optimizer.lr_at(now)
        if isinstance(training.criterion, DeferredReweighting):
            training.criterion.set_epoch(now)
        for group in training.optimizer.param_groups:
            group["lr"] = state.rate
        train_step(training, batch)
        images_seen += batch.total
        display.step(state)
        if stop.agreed(fabric):
            training.save()
            raise Interrupted(f"interrupted in epoch {state.epoch + 1}; run the same command to resume")
        if timer.is_due(fabric, state.step):
            training.save()
    state.check_finite(fabric)
    train_seconds = timer.seconds()
    found = tested(training, display) if config.is_tested_after(state.epoch + 1) else {}
    loss_of_epoch = total(fabric, state.end_epoch()).item()
    return {
        "epoch": state.epoch,
        "train_loss": loss_of_epoch / len(training.dataset.train),
        "lr": state.rate,
        "images_per_second": images_seen / train_seconds,
        "seconds": timer.seconds(),
        **found,
    }


def tested(training: Training, display: Display) -> dict[str, Any]:
    """How good the network is on the test images."""
    fabric = training.fabric
    metrics = ClassifierMetrics(training.dataset.counts, training.config.loss.name, fabric.device)
    display.testing()
    share_buffers(fabric, training.network)
    found = evaluate_network(fabric, training.network, training.test_loader, metrics)
    if not math.isfinite(found["nll"]):
        raise TrainingError(f"the network's outputs are no numbers after epoch {training.state.epoch + 1}: {ADVICE}")
    return found


def train_step(training: Training, batch: Batch) -> None:
    """Forward, backward, and a step of the optimizer; nothing here waits for the device."""
    fabric, state = training.fabric, training.state
    # The mean over the samples of all processes: DDP takes the mean over the processes.
    scale = fabric.world_size / batch.total
    pieces = split(batch, training.config.optimizer.micro_batch_size, fabric.world_size)
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
            with fabric.autocast():
                logits = model(batch.images)
            metrics.update(logits, batch.labels)
    return metrics.compute(functools.partial(total, fabric))


def split(batch: Batch, size: int | None, processes: int) -> list[tuple[Tensor, Tensor]]:
    """A process's part of a batch in pieces of about ``size`` images; every process has as many, none of them empty."""
    if size is None:
        return [(batch.images, batch.labels)]
    largest = math.ceil(batch.total / processes)
    pieces = max(1, min(math.ceil(largest / size), batch.total // processes))
    return list(zip(batch.images.tensor_split(pieces), batch.labels.tensor_split(pieces), strict=True))
