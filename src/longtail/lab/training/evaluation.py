"""Use a finished run: evaluate it, adjust its last layer, predict."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from longtail._checks import check_choice, check_non_negative, check_positive_integer
from longtail.counts import IntArray, class_counts
from longtail.heads import adjust_logits
from longtail.lab.config import ConfigError, ModelConfig, RunConfig, config_errors, shortest
from longtail.lab.data import CATALOG, Batch, DataError, ImageDataset, ImageFiles, Loader, evaluation_loader
from longtail.lab.data.dataset import Images
from longtail.lab.data.decode import read_centre_crop, read_image
from longtail.lab.data.image_folder import labelled_images
from longtail.lab.data.loaders import available_cores
from longtail.lab.models import build_model
from longtail.lab.training.build import input_size, open_data
from longtail.lab.training.loop import EVALUATION_BATCH, evaluate_network
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.processes import make_fabric
from longtail.lab.training.run_folder import RunFolder, versions

__all__ = ["METHODS", "LoadedRun", "adjust_run", "evaluate_run", "load_run", "predict"]

PREDICTION_BATCH = 32


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
    transform: Callable[[Path], Tensor]
    """From an image file to what the network takes, shape (channels, height, width)."""
    classes: tuple[str, ...]
    counts: np.ndarray[Any, np.dtype[np.int64]]
    """Training images of each class."""


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
    folder.check_finished()
    shape = data["image_shape"]
    channels = shape[0] if shape else 3
    network = build_model(config.model.name, len(data["classes"]), channels, cosine_scale=config.loss.cosine_scale)
    folder.load_weights(network)
    counts = np.array(data["train_counts"], dtype=np.int64)
    if adjustment is not None:
        found = folder.adjustment(adjustment)
        adjust_(network.fc, found["method"], found["tau"], counts)
    return LoadedRun(
        path=folder.path,
        config=config,
        model=network.eval(),
        transform=_Transform(shape, input_size(config), data["mean"], data["std"]),
        classes=tuple(data["classes"]),
        counts=counts,
    )


class _Transform:
    """From an image file to what the network saw in its evaluation."""

    def __init__(self, shape: list[int] | None, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.shape, self.size = shape, size
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, path: Path) -> Tensor:
        pixels = read_centre_crop(path, self.size) if self.shape is None else self._whole(path, *self.shape)
        return (pixels.float() - self.mean) / self.std

    def _whole(self, path: Path, channels: int, height: int, width: int) -> Tensor:
        """The whole image, scaled to the size of those in memory, in grey if they are."""
        pixels = torch.from_numpy(read_image(path)).permute(2, 0, 1)[None]
        if pixels.shape[2:] != (height, width):
            pixels = F.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
        return pixels[0] if channels == 3 else pixels[0].float().mean(dim=0, keepdim=True).round()


def evaluate_run(
    run: LoadedRun, split: str = "test", data_dir: Path | None = None, data: Path | str | None = None
) -> dict[str, Any]:
    """How good a finished run is on its test images, on its training images without augmentation, or on others.

    Args:
        run: a finished run.
        split: ``"test"`` or ``"train"``.
        data_dir: where named data sets are.
        data: where the images of the run are now; or a folder or list of other images of its classes, all of which are
            evaluated unless they have a ``split`` of their own.

    Returns:
        The metrics; ``images`` of each class; and the ``split``, None where all images were evaluated.

    Example:
        >>> evaluate_run(load_run("runs/digits-…"))["error"]  # doctest: +SKIP
        8.2
    """
    fabric = make_fabric(run.config.precision, "auto", 1)
    chosen: str | None = split
    images: Images
    loader: Loader
    dataset = _own_images(run, data_dir, data)
    if dataset is not None:
        images = dataset.test if split == "test" else dataset.train
        size = input_size(run.config)
        loader = evaluation_loader(dataset, EVALUATION_BATCH, images=images, image_size=size, device=fabric.device)
    else:
        images, chosen = labelled_images(Path(str(data)), run.classes, split, run.config.data.files.class_depth)
        loader = _LabelledLoader(images, run.transform, fabric.device)
    model = fabric.setup(copy.deepcopy(run.model))  # which moves it to the device: that of the run stays on the CPU
    metrics = ClassifierMetrics(run.counts, run.config.loss.name, fabric.device)
    found = evaluate_network(fabric, model, loader, metrics)
    _check_finite(run, math.isfinite(found["nll"]))
    return found | {"images": class_counts(images.labels.numpy(), len(run.classes)).tolist(), "split": chosen}


def _own_images(run: LoadedRun, data_dir: Path | None, data: Path | str | None) -> ImageDataset | None:
    """The data set that the run was trained on, if that is what is in ``data``."""
    # Its network is trained: where that started from need not be there any more.
    config = replace(run.config, model=ModelConfig(name=run.config.model.name))
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
        if found.data.fingerprint != run.config.data.fingerprint:
            return None
    elif data is not None and str(data) != config.data.name:
        raise ConfigError(f"{run.path} was trained on {config.data.name}, not on {data}")
    else:
        dataset, subset, found = open_data(config, data_dir)
    # Else images it was trained on could be among those of the test.
    RunFolder(run.path).check_data(dataset, subset, found)
    return dataset


class _LabelledLoader:
    """Images of files in batches, as the network of a run sees them, whatever it was trained on."""

    def __init__(self, images: ImageFiles, transform: Callable[[Path], Tensor], device: torch.device) -> None:
        self.images, self.transform, self.device = images, transform, device

    def __len__(self) -> int:
        return math.ceil(len(self.images) / PREDICTION_BATCH)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        paths = [self.images.path(index) for index in range(len(self.images))]
        labels = torch.split(self.images.labels, PREDICTION_BATCH)
        for (pixels, errors), own in zip(_read(paths, self.transform), labels, strict=True):
            for error in errors:
                if error is not None:
                    raise DataError(error)
            yield Batch(pixels.to(self.device), own.to(self.device), len(own))


def predict(
    run: LoadedRun,
    paths: Sequence[Path],
    top: int = 5,
    *,
    workers: int | None = None,
    unreadable: Callable[[DataError], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """The most probable classes of image files, most probable first.

    Args:
        run: a finished run.
        paths: the image files.
        top: how many classes to name.
        workers: processes that read them; by default one for each core, up to 8, and none for a few images.
        unreadable: is given the error of each image that cannot be read, and the others follow; without it, the first
            such error is raised.

    Example:
        >>> list(predict(load_run("runs/digits-…"), [Path("photo.png")], top=1))  # doctest: +SKIP
        [{'path': 'photo.png', 'classes': ['7'], 'probabilities': [0.93]}]
    """
    check_positive_integer("top", top)
    if isinstance(paths, (str, Path)):
        raise TypeError(f"paths must be a list of paths, got {paths!r}")
    for number, (images, errors) in enumerate(_read(paths, run.transform, workers)):
        labels, probabilities = _most_probable(run, images, top)
        best = zip(labels.tolist(), probabilities.tolist(), strict=True)
        batch = paths[number * PREDICTION_BATCH : (number + 1) * PREDICTION_BATCH]
        for path, error in zip(batch, errors, strict=True):
            if error is None:
                names, values = next(best)
                yield {"path": str(path), "classes": [run.classes[label] for label in names], "probabilities": values}
            elif unreadable is None:
                raise DataError(error)
            else:
                unreadable(DataError(error))


@torch.no_grad()
def _most_probable(run: LoadedRun, images: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Of each image: class indices, and their probabilities."""
    if not len(images):
        return torch.empty(0, 0), torch.empty(0, 0)
    logits = run.model(images)
    _check_finite(run, bool(logits.isfinite().all()))
    probabilities, labels = log_probabilities(logits, run.config.loss.name).topk(min(top, len(run.classes)))
    return labels, probabilities.exp()


def _read(
    paths: Sequence[Path], transform: Callable[[Path], Tensor], workers: int | None = None
) -> Iterator[tuple[Tensor, list[str | None]]]:
    """Image files in batches: those that can be read, and for each file what is wrong with it."""
    if workers is None:
        batches = math.ceil(len(paths) / PREDICTION_BATCH)
        workers = min(8, available_cores(), batches) if batches > 1 else 0
    files = _Files(paths, transform)
    yield from DataLoader(
        files, PREDICTION_BATCH, collate_fn=files.stack, num_workers=workers, generator=torch.Generator()
    )


class _Files(Dataset[Any]):
    """Reads an image file for the network, in a worker process; of one that cannot be read it has the reason."""

    def __init__(self, paths: Sequence[Path], transform: Callable[[Path], Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self.transform(self.paths[index])
        except DataError as error:
            return str(error)

    def stack(self, items: list[Tensor | str]) -> tuple[Tensor, list[str | None]]:
        """The images that could be read in one tensor, and for each item what is wrong with it."""
        images = [item for item in items if isinstance(item, Tensor)]
        errors = [item if isinstance(item, str) else None for item in items]
        return torch.stack(images) if images else torch.empty(0), errors


def _check_finite(run: LoadedRun, finite: bool) -> None:
    if not finite:
        raise ConfigError(f"the outputs of {run.path} are not finite numbers: its training diverged")


METHODS = ("tau_norm", "logit_adjustment")


def adjust_run(
    path: Path | str,
    method: str,
    tau: float = 1.0,
    data_dir: Path | None = None,
    data: Path | str | None = None,
) -> Path:
    """Adjust the last layer of a finished run for rare classes, without training, and evaluate it.

    Args:
        path: the run folder.
        method: ``"tau_norm"`` or ``"logit_adjustment"``.
        tau: τ ≥ 0: 0 changes nothing but the bias, which tau_norm drops.
        data_dir: where named data sets are.
        data: where the images of the run are now, if they were moved.

    Returns:
        The file in ``RUN/adjustments/`` that keeps the method and the metrics; its stem is the slug that
        :func:`load_run` takes.

    Example:
        >>> adjust_run("runs/digits-…", "tau_norm", 0.7)  # doctest: +SKIP
        PosixPath('runs/digits-…/adjustments/tau_norm_0.7.json')
    """
    with config_errors():
        check_choice("method", method, METHODS)
        check_non_negative("tau", tau)
    run, folder = load_run(path), RunFolder(Path(path))
    if method == "logit_adjustment" and run.config.loss.name == "logit_adjusted":
        raise ConfigError("logit_adjustment would correct twice: balanced softmax did so in training")
    adjust_(run.model.fc, method, tau, run.counts)  # type: ignore[arg-type]
    if data is not None and _own_images(run, data_dir, data) is None:
        raise ConfigError(f"{data} does not hold the images that {run.path} was trained on")
    metrics = evaluate_run(run, data_dir=data_dir, data=data)
    found = {name: value for name, value in metrics.items() if name not in ("images", "split")}
    slug = f"{method}_{shortest(float(tau))}"
    content = {"method": method, "tau": float(tau), "final": found, "versions": versions()}
    return folder.write_adjustment(slug, content)


@torch.no_grad()
def adjust_(layer: nn.Module, method: str, tau: float, counts: IntArray) -> None:
    r"""Change a trained last layer in favour of rare classes.

    .. math:: w_j \leftarrow w_j / \lVert w_j \rVert^\tau, \; b_j \leftarrow 0 \;(\text{tau\_norm}), \qquad
        b_j \leftarrow b_j - \tau \log \pi_j, \; \pi_j = n_j / \textstyle\sum_k n_k \;(\text{logit\_adjustment})

    Args:
        layer: the last layer, changed in place.
        method: ``"tau_norm"`` or ``"logit_adjustment"``.
        tau: τ ≥ 0.
        counts: training images of each class.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> adjust_(layer, "tau_norm", 1.0, np.array([900, 100]))
        >>> layer.weight.data, layer.bias.data
        (tensor([[0.6000, 0.8000],
                [0.0000, 1.0000]]), tensor([0., 0.]))

    Reference:
        Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020, section 4;
        Menon et al., *Long-Tail Learning via Logit Adjustment*, ICLR 2021.
    """
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ConfigError(f"{method} requires a linear last layer with a bias, not {type(layer).__name__}")
    if method == "tau_norm":
        weights = layer.weight.double()
        layer.weight.copy_(weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-12) ** tau)
        layer.bias.zero_()
        return
    layer.bias.copy_(adjust_logits(layer.bias.double(), counts, tau))
