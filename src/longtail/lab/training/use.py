"""A finished run in use: its network, the way it sees images, its class names."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from longtail._checks import check_positive_integer
from longtail.counts import class_counts
from longtail.lab.config import RunConfig
from longtail.lab.data import DataError, evaluation_loader
from longtail.lab.data.decode import read_centre_crop, read_image
from longtail.lab.data.loaders import available_cores
from longtail.lab.models import build_model
from longtail.lab.training.build import open_data
from longtail.lab.training.loop import EVALUATION_BATCH, evaluate_network
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities
from longtail.lab.training.processes import make_fabric
from longtail.lab.training.run_folder import RunFolder

__all__ = ["LoadedRun", "evaluate_run", "load_run", "predict"]

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


def load_run(path: Path | str) -> LoadedRun:
    """Load the network of a finished run; nothing that the files hold is run.

    Args:
        path: the run folder.

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
    network = build_model(config.model, len(data["classes"]), channels, cosine_scale=config.loss.cosine_scale)
    folder.load_weights(network)
    return LoadedRun(
        path=folder.path,
        config=config,
        model=network.eval(),
        transform=_Transform(shape, config.data.image_size, data["mean"], data["std"]),
        classes=tuple(data["classes"]),
        counts=np.array(data["train_counts"], dtype=np.int64),
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


def evaluate_run(run: LoadedRun, split: str = "test", data_dir: Path | None = None) -> dict[str, Any]:
    """How good a finished run is on its test images, or on its training images without augmentation.

    Example:
        >>> evaluate_run(load_run("runs/digits-…"))["error"]  # doctest: +SKIP
        8.2
    """
    dataset, subset = open_data(RunFolder(run.path).placed(run.config), data_dir)
    # Else images it was trained on could be among those of the test.
    RunFolder(run.path).check_data(dataset, subset)
    images = dataset.test if split == "test" else dataset.train
    fabric = make_fabric(run.config.precision, "auto", 1)
    size = run.config.data.image_size
    loader = evaluation_loader(dataset, EVALUATION_BATCH, images=images, image_size=size, device=fabric.device)
    model = fabric.setup(copy.deepcopy(run.model))  # which moves it to the device: that of the run stays on the CPU
    metrics = ClassifierMetrics(run.counts, run.config.loss.loss, fabric.device)
    found = evaluate_network(fabric, model, loader, metrics)
    return found | {"images": class_counts(images.labels.numpy(), len(dataset.classes)).tolist()}


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
    files = _Files(paths, run.transform)
    if workers is None:
        batches = math.ceil(len(paths) / PREDICTION_BATCH)
        workers = min(8, available_cores(), batches) if batches > 1 else 0
    loader = DataLoader(
        files, PREDICTION_BATCH, collate_fn=files.stack, num_workers=workers, generator=torch.Generator()
    )
    for number, (images, errors) in enumerate(loader):
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
    probabilities, labels = log_probabilities(run.model(images), run.config.loss.loss).topk(min(top, len(run.classes)))
    return labels, probabilities.exp()


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
