"""The training loop: on one device or many, and resumable whenever it is killed."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor, nn

from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.data import Batch, ImageDataset, Loader, LongTailedSubset
from longtail.lab.data.batches import cut
from longtail.lab.data.loaders import FeatureLoader
from longtail.lab.models import classifier
from longtail.lab.models.batch_norm import synchronise_batch_norms
from longtail.lab.training.build import (
    FusedNetwork,
    attach_head,
    build_head,
    build_loss,
    build_network,
    build_optimizer,
    follow_schedule,
    make_loaders,
    open_data,
    with_fused_head,
)
from longtail.lab.training.checkpoint import ADVICE, State, load_checkpoint, save_checkpoint
from longtail.lab.training.cost import (
    Cost,
    available_memory,
    check_memory,
    duration,
    enough_memory,
    measure_inputs,
    speed,
)
from longtail.lab.training.display import Display
from longtail.lab.training.errors import Interrupted, TrainingError
from longtail.lab.training.finetuning import training_error, warm_start
from longtail.lab.training.frozen import FrozenBackbone, head_threads
from longtail.lab.training.metrics import ClassifierMetrics, without_details
from longtail.lab.training.processes import (
    Stop,
    computed_by_first,
    gathered,
    make_fabric,
    opened_by_first,
    share_buffers,
    stop_signals,
    total,
)
from longtail.lab.training.run_folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FEW_STEPS = 3
HEAD_SECONDS = 5.0
"""Least time between checkpoints after epochs of a head, each of which takes milliseconds."""


def train(
    config: RunConfig,
    options: RunOptions = RunOptions(),
    console: Console | None = None,
) -> Path:
    """Train a configuration, or resume it, and return its run folder.

    A complete run is left as it is. An interrupted one resumes from its last checkpoint and ends with the same weights,
    bit for bit, as one that was not interrupted (on a CPU, with as many threads).

    Args:
        config: what to train.
        options: where and how.
        console: where to show progress.

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
    if config.is_identified and (done := _complete(config, options, console)):
        return done  # without opening the data
    # A run that cannot start says why once, before it starts other processes, and leaves no folder.
    dataset, subset, config = open_data(config, options.data_dir, console, options.runs)
    if done := _complete(config, options, console):
        return done
    backbone = FrozenBackbone(config, dataset) if config.model.freeze else None
    torch.manual_seed(config.seed)
    network = build_head(config, backbone.size, len(dataset.classes)) if backbone else build_network(config, dataset)
    fabric = make_fabric(config, options.accelerator, options.devices)
    console = console if fabric.is_global_zero else None
    if backbone:
        compute = functools.partial(backbone.compute, device=fabric.device, workers=options.workers, console=console)
        computed_by_first(fabric, compute)
    folder = RunFolder(options.runs / config.run_id)
    with head_threads(backbone, fabric.device), enough_memory(config):
        cost = measure_inputs(config, fabric, dataset, network)
        check_memory(config, cost, available_memory(fabric.device), fabric.world_size)
        with folder.written(), opened_by_first(folder, config, fabric), stop_signals() as stop:
            if fabric.world_size == 1 and folder.result_file.exists():
                return folder.path  # another process has finished it since
            training = Training(config, options, fabric, dataset, folder, network, backbone)
            notes = [*dataset.notes, *training.resume(subset)]
            seconds = cost.seconds(config, len(dataset.train), tested_images(dataset), training.state.epoch)
            seconds /= fabric.world_size
            notes.append(describe(config, dataset, cost, seconds, training.state.epoch, fabric.world_size))
            if fabric.is_global_zero:
                folder.write_progress(training.state.epoch / config.optimizer.epochs, seconds)
            if console:
                console.print(*notes, sep="\n", highlight=False, markup=False, soft_wrap=True)
            if config.model.warm_start and not (training.state.epoch or training.state.step):
                warm_start(network, config, dataset, fabric, options.workers, console)
            with training.display(console) as display:
                while training.state.epoch < config.optimizer.epochs:
                    line = train_epoch(training, stop, display, options.checkpoint_minutes)
                    training.lines = [*map(without_details, training.lines), line]
                    display.epoch(training.lines)
                    training.save_after_epoch()
                training.keep_chosen_epoch(display)
            if fabric.is_global_zero:
                training.finish(backbone)
            fabric.barrier()
    return folder.path


def tested_images(dataset: ImageDataset) -> int:
    """Images of a test, on test and validation images."""
    return len(dataset.test) + (0 if dataset.validation is None else len(dataset.validation))


def describe(config: RunConfig, dataset: ImageDataset, cost: Cost, seconds: float, epoch: int, world_size: int) -> str:
    """What will be trained, and how long it takes here."""
    train, test, classes = len(dataset.train), len(dataset.test), len(dataset.classes)
    validation = 0 if dataset.validation is None else len(dataset.validation)
    held_out = f", {validation:,} validation" if validation else ""
    epochs = config.optimizer.epochs - epoch
    left = f"{epochs} epoch{'s' if epochs > 1 else ''}" + (" left" if epoch else "")
    frozen = ", frozen" if config.model.freeze else ""
    alternative = ""
    if config.model.warm_start:
        alternative = f"; the frozen backbone takes {duration((train + test) / cost.tested_per_second)}"
    return (
        f"{dataset.name}: {train:,} training{held_out} and {test:,} test images, {classes:,} classes; "
        f"{config.model.name}{frozen}, {config.title}; {left}: about {duration(seconds)} "
        f"({speed(world_size * cost.images_per_second)}){alternative}"
    )


def _complete(config: RunConfig, options: RunOptions, console: Console | None) -> Path | None:
    folder = RunFolder(options.runs / config.run_id)
    if folder.result() is None:
        return None
    if console:
        console.print(f"{folder.path} is already complete", soft_wrap=True)
    return folder.path


class Training:
    """What is trained, on what, and how far it is."""

    def __init__(
        self,
        config: RunConfig,
        options: RunOptions,
        fabric: Fabric,
        dataset: ImageDataset,
        folder: RunFolder,
        network: nn.Module,
        backbone: FrozenBackbone | None = None,
    ) -> None:
        self.config, self.fabric, self.dataset, self.folder, self.network = config, fabric, dataset, folder, network
        if config.sync_batch_norm and fabric.world_size > 1:
            synchronise_batch_norms(network)
        # Convolutions are faster with the channels of a pixel side by side.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.criterion = build_loss(config, dataset.counts).to(fabric.device)
        called = with_fused_head(config, network, self.criterion)
        self.is_fused = isinstance(called, FusedNetwork)
        compiled: Any = torch.compile(called) if config.compile else called
        # The network as it is called: fused with its loss, compiled, and over several processes.
        self.model: Any
        self.optimizer: Any
        self.model, self.optimizer = fabric.setup(compiled, build_optimizer(config, network))
        loaders = make_loaders(config, options, fabric, dataset, backbone)
        self.loader, self.test_loader = loaders["train"], loaders["test"]
        self.validation_loader = loaders.get("validation")
        self.state = State(fabric.device)
        self.lines: list[dict[str, Any]] = []
        """Metrics of the epochs that are done."""

    def resume(self, subset: LongTailedSubset) -> list[str]:
        """Resume from the last checkpoint, if there is one, and say what was wrong with others."""
        with self.fabric.rank_zero_first():  # which moves damaged ones out of the way
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
                raise ConfigError(f"the checkpoint in {self.folder.path} is for another network: {reason}") from None
        self.lines.extend(self.folder.metrics(self.state.epoch))
        if self.state.epoch or self.state.step:
            notes.append(f"resuming in epoch {self.state.epoch + 1} of {self.config.optimizer.epochs}")
        elif len(self.loader) < FEW_STEPS:
            size, steps = self.config.optimizer.batch_size, "1 step" if len(self.loader) == 1 else "2 steps"
            notes.append(
                f"only {steps} an epoch: {len(self.dataset.train):,} images are few for a batch size of {size:,}"
            )
        return notes

    def save(self) -> None:
        """Write a checkpoint, unless the training has gone astray."""
        self.state.check_finite(self.fabric)
        content = self.state.content(self.network, self.optimizer, self.fabric)
        if self.fabric.is_global_zero:
            self.folder.write_metrics(self.lines)  # first: what is not there then would be missing for ever
            self.folder.check_held()
            save_checkpoint(self.folder.path, content)
        self.state.saved = time.monotonic()

    def save_after_epoch(self) -> None:
        """Write a checkpoint, unless the epochs of a head are so short that the last one is a moment old."""
        recent = time.monotonic() - self.state.saved < HEAD_SECONDS
        if not (self.config.model.freeze and recent and self.fabric.world_size == 1):
            self.save()

    def keep_chosen_epoch(self, display: Display) -> None:
        """Take the weights of the epoch to keep, and test them if that was not done in detail."""
        best = self.state.best
        if best:
            self.network.load_state_dict(best["model"])
        kept = self.lines[best["epoch"] - 1 if best else -1]
        if "confusion" not in kept:  # it is an earlier epoch, or the run was killed after its last one
            kept |= tested(self, display)

    def finish(self, backbone: FrozenBackbone | None) -> None:
        """Write what came out."""
        self.folder.write_metrics(self.lines)
        network, best = self.network, self.state.best
        if backbone and not self.config.model.saves_head_only:
            attach_head(backbone.network, classifier(network), self.config)
            network = backbone.network
        self.folder.finish(self.config, network, self.lines, self.fabric.world_size, best["epoch"] if best else None)

    def display(self, console: Console | None) -> Display:
        """For people, from where the training is."""
        path = self.folder.path if self.fabric.is_global_zero else None
        report = {"report": self.folder.write_progress} if path else {}
        return Display(path, console, self.config.optimizer.epochs, len(self.loader), self.state, **report)


def train_epoch(training: Training, stop: Stop, display: Display, checkpoint_minutes: float) -> dict[str, Any]:
    """Train on each image once, or on those that are left, and return the epoch's line of metrics."""
    config, fabric, state = training.config, training.fabric, training.state
    began, images_seen = time.monotonic(), 0
    training.model.train()
    for batch in training.loader.epoch(state.epoch, state.step):
        now = state.epoch + state.step / len(training.loader)
        state.rate = follow_schedule(config, training.optimizer, training.criterion, now)
        train_step(training, batch)
        images_seen += batch.total
        display.step(state)
        if stop.agreed(fabric):
            training.save()
            raise Interrupted(f"interrupted in epoch {state.epoch + 1}; run the same command to resume")
        if state.is_save_due(fabric, checkpoint_minutes):
            training.save()
    state.check_finite(fabric)
    train_seconds = time.monotonic() - began
    found = tested(training, display) | validated(training, display) if config.is_tested_after(state.epoch + 1) else {}
    loss_of_epoch = total(fabric, state.end_epoch()).item()
    return {
        "epoch": state.epoch,
        "train_loss": loss_of_epoch / len(training.dataset.train),
        "lr": state.rate,
        "images_per_second": images_seen / train_seconds,
        "seconds": time.monotonic() - began,
        **found,
    }


def tested(training: Training, display: Display) -> dict[str, Any]:
    """Metrics of the network on the test images."""
    display.testing(0)
    share_buffers(training.fabric, training.network)
    found = evaluated(training, training.test_loader, display)
    epochs = training.config.optimizer.epochs
    if isinstance(training.loader, FeatureLoader) and training.state.epoch + 1 >= epochs:
        found["train_error"] = training_error(training.network, training.loader, epochs)
    if not math.isfinite(found["nll"]):
        raise TrainingError(
            f"the network's outputs are not finite numbers after epoch {training.state.epoch + 1}: {ADVICE}"
        )
    return found


def validated(training: Training, display: Display) -> dict[str, Any]:
    """How good the network is on the validation images, if there are any; the best epoch so far is kept."""
    if training.validation_loader is None:
        return {}
    found = evaluated(training, training.validation_loader, display)
    if training.config.keep == "best":
        training.state.keep_best(found["balanced_accuracy"], found["nll"], training.network)
    return {f"validation_{name}": value for name, value in found.items() if not isinstance(value, (dict, list))}


def evaluated(training: Training, loader: Loader, display: Display) -> dict[str, Any]:
    """How good the network is on the images of a loader."""
    metrics = ClassifierMetrics(training.dataset.counts, training.config.loss.name, training.fabric.device)
    return evaluate_network(training.fabric, training.network, loader.epoch(0), metrics, display.testing)


def train_step(training: Training, batch: Batch) -> None:
    """Forward, backward, and a step of the optimizer; nothing here waits for the device."""
    fabric, state = training.fabric, training.state
    # The mean over the samples of all processes: DDP takes the mean over the processes.
    scale = fabric.world_size / batch.total
    pieces = split(batch, training.config.optimizer.micro_batch_size, fabric.world_size)
    for number, (images, labels) in enumerate(pieces, start=1):
        with fabric.no_backward_sync(training.model, enabled=number < len(pieces)):
            if training.is_fused:
                loss = training.model(images, labels) * scale
            else:
                loss = training.criterion(training.model(images), labels) * scale
            fabric.backward(loss)
        state.add(loss.detach() / scale)
    training.optimizer.step()
    training.optimizer.zero_grad()
    state.step += 1


@torch.no_grad()
def evaluate_network(
    fabric: Fabric,
    model: nn.Module,
    batches: Iterable[Batch],
    metrics: ClassifierMetrics,
    seen: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """How good the model is on batches of images, over all processes; ``seen`` is told how many are done."""
    model.eval()
    done = 0
    for batch in batches:
        if len(batch.labels):
            with fabric.autocast():
                logits = model(batch.images)
            metrics.update(logits, batch.labels, done + cut(batch.total, fabric.world_size)[fabric.global_rank])
        done += batch.total
        seen(done)
    return metrics.compute(functools.partial(total, fabric), functools.partial(gathered, fabric))


def split(batch: Batch, size: int | None, processes: int) -> list[tuple[Tensor, Tensor]]:
    """A process's part of a batch in pieces of about ``size`` images; every process has as many, none of them empty."""
    if size is None:
        return [(batch.images, batch.labels)]
    largest = math.ceil(batch.total / processes)
    pieces = max(1, min(math.ceil(largest / size), batch.total // processes))
    return list(zip(batch.images.tensor_split(pieces), batch.labels.tensor_split(pieces), strict=True))
