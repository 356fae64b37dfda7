"""Use a finished run: load it, evaluate it, adjust its last layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.counts import IntArray, class_counts
from longtail.heads import adjust_logits
from longtail.lab.config import ConfigError, ModelConfig, RunConfig
from longtail.lab.data import CATALOG, Batch, DataError, ImageDataset, ImageFiles, InputSpec, evaluation_loader
from longtail.lab.data.dataset import Images
from longtail.lab.data.image_folder import labelled_images
from longtail.lab.data.loaders import FeatureLoader
from longtail.lab.models import classifier, feature_size
from longtail.lab.training.adjustments import Adjustment, adjust_, choose_adjustment, fit_temperature
from longtail.lab.training.build import (
    EVALUATION_BATCH,
    attach_head,
    build_head,
    find_weights,
    load_initial_weights,
    open_data,
    random_network,
)
from longtail.lab.training.frozen import FrozenBackbone
from longtail.lab.training.loop import evaluate_network
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.prediction import PREDICTION_BATCH, Transform, read_batches
from longtail.lab.training.processes import make_fabric
from longtail.lab.training.run_folder import RunFolder, versions


@dataclass(frozen=True)
class LoadedRun:
    """A trained network with all that is needed to use it.

    Example:
        >>> from longtail.lab.training import load_run
        >>> run = load_run("runs/digits-…")  # doctest: +SKIP
        >>> run.model(run.transform(Path("photo.png"))[None]).argmax()  # doctest: +SKIP
        tensor(7)
    """

    path: Path
    """The run folder."""
    config: RunConfig
    model: nn.Module
    """In evaluation mode, on the CPU."""
    transform: Transform
    """From an image file to what the network takes, shape (channels, height, width)."""
    classes: tuple[str, ...]
    counts: np.ndarray[Any, np.dtype[np.int64]]
    """Training images of each class."""

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Of each class, for images that were transformed, shape (N, C)."""
        logits = self.model(images)
        _check_finite(self.path, bool(logits.isfinite().all()))
        return log_probabilities(logits, self.config.loss.name).exp()


def load_run(path: Path | str, adjustment: str | None = None) -> LoadedRun:
    """Load the network of a finished run; nothing that the files hold is run.

    Args:
        path: the run folder.
        adjustment: the slug of one of its adjustments (see :func:`adjust_run`).

    Example:
        >>> load_run("nowhere")
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: nowhere does not exist
    """
    folder = RunFolder(Path(path))
    config, data = folder.config(), folder.data()
    folder.finished_result()
    shape = data["image_shape"]
    spec = data.get("input") or {"input_size": config.data.image_size}
    network = random_network(config, len(data["classes"]), shape[0] if shape else 3, spec["input_size"])
    if config.model.freeze:
        head = build_head(config, feature_size(network), len(data["classes"]))
        if config.model.saves_head_only:
            config = replace(config, model=find_weights(config.model, folder.path.parent))
            load_initial_weights(network, config.model, spec["input_size"])
            folder.load_weights(head)
        attach_head(network, head.fc, config)
    if not config.model.saves_head_only:
        folder.load_weights(network)
    counts = np.array(data["train_counts"], dtype=np.int64)
    if adjustment is not None:
        adjust_(classifier(network), Adjustment.from_content(folder.adjustment(adjustment)), counts)
    return LoadedRun(
        path=folder.path,
        config=config,
        model=network.eval(),
        transform=Transform(
            shape,
            spec["input_size"] or (InputSpec.input_size if shape is None else None),
            data["mean"],
            data["std"],
            **{name: spec[name] for name in ("interpolation", "crop_fraction") if name in spec},
        ),
        classes=tuple(data["classes"]),
        counts=counts,
    )


def evaluate_run(
    run: LoadedRun, split: str = "test", data_dir: Path | None = None, data: Path | str | None = None
) -> dict[str, Any]:
    """How good a finished run is on its test images, on its training images without augmentation, or on others.

    Args:
        run: a finished run.
        split: ``"test"``, ``"train"`` or ``"validation"``.
        data_dir: where named data sets are.
        data: where the images of the run are now; or a folder or list of other images of its classes, all of which are
            evaluated unless they have a ``split`` of their own.

    Returns:
        The metrics; ``images`` of each class; and the ``split``, None where all images were evaluated.

    Example:
        >>> evaluate_run(load_run("runs/digits-…"))["error"]  # doctest: +SKIP
        8.2
    """
    chosen: str | None = split
    images: Images
    dataset = _run_images(run.path, run.config, data_dir, data)
    if dataset is not None:
        images = dataset.split(split)
    elif split == "validation":
        raise ConfigError(f"{data} does not hold the images of {run.path}: only those have validation images")
    else:
        images, chosen = labelled_images(Path(str(data)), run.classes, split, run.config.data.files)
    found = _evaluate(run, images, dataset)
    return found | {"images": class_counts(images.labels.numpy(), len(run.classes)).tolist(), "split": chosen}


def _evaluate(
    run: LoadedRun, images: Images, dataset: ImageDataset | None, metrics: ClassifierMetrics | None = None
) -> dict[str, Any]:
    """How good a run is on images of its data set, or on files from anywhere."""
    fabric = make_fabric(run.config, "auto", 1)
    network: nn.Module
    batches: Iterator[Batch]
    if dataset is not None:
        network, batches = _network_and_batches(run, dataset, images, fabric.device)
    else:
        assert isinstance(images, ImageFiles)
        network, batches = run.model, _labelled_batches(images, run.transform, fabric.device)
    model = fabric.setup(copy.deepcopy(network))  # which moves it to the device: that of the run stays on the CPU
    metrics = metrics or ClassifierMetrics(run.counts, run.config.loss.name, fabric.device)
    found = evaluate_network(fabric, model, batches, metrics)
    _check_finite(run.path, math.isfinite(found["nll"]))
    return found


def _network_and_batches(
    run: LoadedRun, dataset: ImageDataset, images: Images, device: torch.device
) -> tuple[nn.Module, Iterator[Batch]]:
    """The network with batches of images, or the head of a frozen backbone with batches of their features."""
    if not run.config.model.freeze:
        return run.model, evaluation_loader(dataset, EVALUATION_BATCH, images=images, device=device).epoch(0)
    backbone = FrozenBackbone(run.config, dataset, run.model)
    backbone.compute([(images, 0)], device=device)
    loader = FeatureLoader(backbone.features(images), images.labels, EVALUATION_BATCH, device=device)
    return classifier(run.model), loader.epoch(0)


def open_run_data(path: Path) -> ImageDataset:
    """The data set that a run was trained on, as long as it is there and unchanged."""
    dataset = _run_images(path, RunFolder(path).config(), None, None)
    assert dataset is not None
    return dataset


def _run_images(
    path: Path, run_config: RunConfig, data_dir: Path | None, data: Path | str | None
) -> ImageDataset | None:
    """The data set that the run was trained on, if that is what is in ``data``."""
    # Its network is trained: where that started from need not be there any more.
    model, data_config = ModelConfig(name=run_config.model.name), replace(run_config.data, views=0)
    config = replace(run_config, model=model, data=data_config)
    if data is not None and str(data) not in CATALOG:
        if not Path(data).exists():
            raise DataError(f"{data} does not exist")
        if config.data.is_catalogued:
            return None
        config = replace(config, data=replace(config.data, path=Path(data), fingerprint=None))
        try:
            dataset, subset, found = open_data(config, data_dir)
        except (ConfigError, DataError):
            return None
        if found.data.fingerprint != run_config.data.fingerprint:
            return None
    elif data is not None and str(data) != config.data.name:
        raise ConfigError(f"{path} was trained on {config.data.name}, not on {data}")
    else:
        dataset, subset, found = open_data(config, data_dir)
    # Else images it was trained on could be among those of the test.
    RunFolder(path).check_data(dataset, subset, found)
    return dataset


def _labelled_batches(images: ImageFiles, transform: Transform, device: torch.device) -> Iterator[Batch]:
    """Image files in batches, as the network of a run sees them, whatever it was trained on."""
    paths = [images.path(index) for index in range(len(images))]
    labels = torch.split(images.labels, PREDICTION_BATCH)
    for (pixels, errors), chosen in zip(read_batches(paths, transform), labels, strict=True):
        if error := next(filter(None, errors), None):
            raise DataError(error)
        yield Batch(pixels.to(device), chosen.to(device), len(chosen))


def _check_finite(path: Path, finite: bool) -> None:
    if not finite:
        raise ConfigError(f"the outputs of {path} are not finite numbers: its training diverged")


def adjust_run(
    path: Path | str,
    method: str | None = None,
    tau: float = 1.0,
    data_dir: Path | None = None,
    data: Path | str | None = None,
    *,
    prior: Path | str | None = None,
    calibrate: bool = False,
) -> Path:
    """Adjust the last layer of a finished run, without training, and evaluate it.

    Args:
        path: the run folder.
        method: ``"tau_norm"`` or ``"logit_adjustment"``, both for rare classes.
        tau: τ ≥ 0 of the method: 0 changes nothing but the bias, which tau_norm drops.
        data_dir: where named data sets are.
        data: where the images of the run are now, if they were moved.
        prior: the class prior to expect, instead of a method: ``"uniform"``, ``"train"``, or a CSV file with a class
            and its share a row. ``"uniform"`` is logit adjustment with τ = 1.
        calibrate: whether to fit a temperature on the validation images of the run. Logits are divided by it before
            the class prior is changed: validation images have the prior of the training images.

    Returns:
        The file in ``RUN/adjustments/`` that keeps the adjustment and the metrics; its stem is the slug that
        :func:`load_run` takes.

    Example:
        >>> adjust_run("runs/digits-…", "tau_norm", 0.7)  # doctest: +SKIP
        PosixPath('runs/digits-…/adjustments/tau_norm_0.7.json')
    """
    run, folder = load_run(path), RunFolder(Path(path))
    chosen = choose_adjustment(run.config, run.classes, run.counts, method, tau, prior)
    if chosen.method is None and not calibrate:
        raise ConfigError(
            "nothing to adjust: the outputs of this run have the prior of its training images"
            if prior
            else "method is missing: tau_norm or logit_adjustment; or give a prior, or calibrate"
        )
    if calibrate and not run.config.data.validation_fraction:
        raise ConfigError(f"calibrate requires validation images: {run.path} has none (data.validation_fraction)")
    dataset = _run_images(run.path, run.config, data_dir, data)
    if dataset is None:
        raise ConfigError(f"{data} does not hold the images that {run.path} was trained on")
    calibration: dict[str, Any] = {}
    if calibrate:
        before = copy.deepcopy(run.model)
        if chosen.method == "tau_norm":
            adjust_(classifier(before), chosen, run.counts)
        temperature, on_validation = _fit_temperature(replace(run, model=before), dataset)
        chosen, calibration = replace(chosen, temperature=temperature), {"validation": on_validation}
    adjust_(classifier(run.model), chosen, run.counts)
    metrics = _evaluate(run, dataset.test, dataset)
    calibration["test"] = {
        when: {name: each.get(name) for name in ("nll", "calibration_error")}
        for when, each in (("before", folder.finished_result()["final"]), ("after", metrics))
    }
    content = {**asdict(chosen), "calibration": calibration, "final": metrics, "versions": versions()}
    return folder.write_adjustment(chosen.slug, content)


def _fit_temperature(run: LoadedRun, dataset: ImageDataset) -> tuple[float, dict[str, dict[str, float]]]:
    images = dataset.split("validation")
    outputs = _Outputs(run.counts, run.config.loss.name)
    _evaluate(run, images, dataset, outputs)
    logits = torch.cat(outputs.logits)
    loss, tau = run.config.loss, run.config.loss.tau
    # What balanced softmax said in training, of images with the prior of the training.
    shift = 0.0 if tau is None else -adjust_logits(torch.zeros_like(logits[0]), run.counts, tau)
    return fit_temperature(logits, torch.cat(outputs.labels), loss.name, run.counts, shift)


class _Outputs(ClassifierMetrics):
    """Metrics that keep what they are computed from, on the CPU."""

    def __init__(self, counts: IntArray, loss: str) -> None:
        super().__init__(counts, loss)
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor, first: int = 0) -> None:
        self.logits.append(logits.float().cpu())
        self.labels.append(labels.cpu())
        super().update(self.logits[-1], self.labels[-1], first)
