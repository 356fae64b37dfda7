"""The folder of a run: what was asked for, what happened, and what came out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_safetensors
from torch import nn

from longtail.lab.config import ConfigError, RunConfig
from longtail.lab.data import ImageDataset, ImageFiles, LongTailedSubset
from longtail.lab.files import write_atomically

__all__ = ["RunFolder"]


class RunFolder:
    """Files of a run; every write is atomic, and ``result.json`` exists only when the run is complete.

    Args:
        path: the folder; its name is the id of the run.

    Example:
        >>> RunFolder(Path("runs/nothing")).result() is None
        True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.data_file = path / "data.json"
        self.metrics_file = path / "metrics.jsonl"
        self.model_file = path / "model.safetensors"
        self.result_file = path / "result.json"

    @contextlib.contextmanager
    def opened(self, config: RunConfig) -> Iterator[None]:
        """Make it the folder of this run, for this process alone."""
        if self.path.exists() and not self.config_file.exists() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} holds something else than a run: nothing was changed")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{self.path} is in use by another process") from None
            if not self.config_file.exists():
                write_atomically(self.config_file, config.to_json())
            elif self.config() != config:
                raise ConfigError(f"{self.config_file} is of another run: nothing was changed")
            yield

    def config(self) -> RunConfig:
        """What was asked for."""
        return RunConfig.from_json(_read(self.config_file), self.config_file)

    def data(self) -> dict[str, Any]:
        """What was trained on: classes, images, how they were normalised."""
        return _parsed(self.data_file)

    def result(self) -> dict[str, Any] | None:
        """What came out, if the run is complete."""
        return _parsed(self.result_file) if self.result_file.exists() else None

    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary for each epoch."""
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in _read(self.metrics_file).splitlines()]

    def write_metrics(self, epochs: list[dict[str, Any]]) -> None:
        """Replace all of them: after a resumption, those of epochs that are trained again are gone."""
        write_atomically(self.metrics_file, "".join(json.dumps(epoch) + "\n" for epoch in epochs))

    def write_data(self, dataset: ImageDataset, subset: LongTailedSubset) -> None:
        """Keep what is trained on: which images, the class index, and how images are prepared."""
        images = dataset.train
        subset.save(
            self.data_file,
            dataset.name,
            dataset.classes,
            train_counts=dataset.counts.tolist(),
            mean=dataset.mean,
            std=dataset.std,
            image_shape=None if isinstance(images, ImageFiles) else list(images.images.shape[1:]),
        )

    def check_data(self, dataset: ImageDataset, subset: LongTailedSubset) -> None:
        """Refuse to go on with other images or classes than the run began with."""
        began = self.data()
        now = {"classes": list(dataset.classes), "labels_sha256": subset.labels_sha256, "sha256": subset.sha256}
        if any(began.get(name) != value for name, value in now.items()):
            raise ConfigError(f"{dataset.name} has changed since {self.path} began: to train anew, remove that folder")

    def finish(self, config: RunConfig, network: nn.Module, epochs: list[dict[str, Any]]) -> None:
        """Write the weights, and then the result: whoever finds it finds a complete run."""
        weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        # A single entry of metadata: several have no fixed order in the file, and the same run is the same file.
        write_atomically(self.model_file, to_safetensors(weights, {"run_id": config.run_id}))
        result = {
            "run_id": config.run_id,
            "final": epochs[-1],
            "best_error": min(epoch["error"] for epoch in epochs),
            "seconds": sum(epoch["seconds"] for epoch in epochs),
            "versions": versions(),
        }
        write_atomically(self.result_file, json.dumps(result, indent=2) + "\n")


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    packages = ("longtail", "torch", "numpy", "lightning-fabric", "pillow")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} is no run folder: it has no {path.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    return content
