"""The folder of a run: its configuration, its history and its result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import nn

from longtail.lab.config import ConfigError, RunConfig, values_by_name, with_fields
from longtail.lab.data import ImageDataset, ImageFiles, LongTailedSubset
from longtail.lab.files import write_atomically
from longtail.lab.locks import Lock
from longtail.lab.models import sha256_of
from longtail.lab.training.checks import check_adjustment, check_data, check_epoch, check_result, damage_named
from longtail.lab.training.errors import NotFinished, RunInUse, TrainingError
from longtail.lab.training.metrics import without_details
from longtail.lab.training.model_card import model_card

LOCATIONS = ("path", "test_data", "image_root", "weights_path")
"""Fields of a configuration that say where things were found; they are kept in ``data.json``."""


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
        self.error_file = path / "error.json"
        self.card_file = path / "README.md"
        self.progress_file = path / ".progress.json"
        self._lock: Lock | None = None

    @contextlib.contextmanager
    def opened(self, config: RunConfig) -> Iterator[None]:
        """Make it the folder of this run, for this process alone."""
        if self._is_something_else():
            raise ConfigError(f"{self.path} holds something other than a run: nothing was changed")
        self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path / ".lock", with_folder=True)
        if not lock.acquire(wait=False):
            raise RunInUse(f"{self.path} is in use by another process")
        try:
            for path in self._leftovers():
                path.unlink()
            if not self.config_file.exists():
                write_atomically(self.config_file, config.to_json())
            elif self.config().run_id != config.run_id:
                raise ConfigError(f"{self.config_file} belongs to another run: nothing was changed")
            self._lock = lock
            yield
        finally:
            self._lock = None
            if lock.is_held():
                self.progress_file.unlink(missing_ok=True)
            lock.release()

    def check_held(self) -> None:
        """Refuse to write into a folder that was opened, but deleted since: another process may have it now."""
        if self._lock is None:
            return
        if not self.path.exists():
            raise TrainingError(f"{self.path} was deleted during the run")
        if not self._lock.is_held():
            raise TrainingError(
                f"{self._lock.path} was deleted during the run: another process may have the run now; "
                "run the same command to resume"
            )
        if not self.config_file.exists():  # rm -r cannot remove a folder into which a file is written meanwhile
            raise TrainingError(f"{self.config_file} was deleted during the run: delete what is left of the folder")

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """While a run writes into it: a disk that is full, or gone, is no bad input."""
        try:
            yield
        except (PermissionError, NotADirectoryError, FileExistsError):
            raise
        except OSError as error:
            name = os.fsdecode(error.filename or self.path)  # TensorBoard opens files by bytes
            raise TrainingError(f"cannot write {name}: {error.strerror or error}") from error

    def _is_something_else(self) -> bool:
        if not self.path.exists() or self.config_file.exists():
            return False
        return any(path.name != ".lock" and path not in self._leftovers() for path in self.path.iterdir())

    def _leftovers(self) -> list[Path]:
        """Files that a process was writing when it was killed."""
        pattern = re.compile(
            r"\.(config\.json|data\.json|metrics\.jsonl|checkpoint\.pt|model\.safetensors|README\.md|"
            r"(result|error)\.json)\.\w+|\.progress\.json"
        )
        return [path for path in self.path.glob(".*.*") if pattern.fullmatch(path.name)]

    def write_progress(self, share: float, seconds: float) -> None:
        """Say how much of a training is done and how long the rest takes, for whoever waits for it."""
        with contextlib.suppress(OSError):
            self.progress_file.write_text(json.dumps([share, seconds]), encoding="utf-8")

    def progress(self, since: float) -> tuple[float, float] | None:
        """What :meth:`write_progress` said after a time, while the run is trained."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            if self.progress_file.stat().st_mtime >= since:
                share, seconds = json.loads(self.progress_file.read_text(encoding="utf-8"))
                return float(share), float(seconds)
        return None

    def config(self) -> RunConfig:
        """What was asked for, and where its images and initial weights were found."""
        config = RunConfig.from_json(_read(self.config_file), self.config_file)
        found: dict[str, str] = {}
        with contextlib.suppress(ConfigError):  # who needs data.json says what is wrong with it
            found = self.data().get("locations", {}) if self.data_file.exists() else {}
        return with_fields(config, {name: found[name] for name in LOCATIONS if name in found})

    def data(self) -> dict[str, Any]:
        """What was trained on: classes, images, how they were normalised."""
        return _parsed(self.data_file, check_data)

    def result(self) -> dict[str, Any] | None:
        """What came out, if the run is complete."""
        if not self.result_file.exists():
            return None
        content = _parsed(self.result_file, check_result)
        if content["run_id"] != (run_id := self.config().run_id):
            raise ConfigError(f"{self.result_file} is of {content['run_id']}, but config.json of {run_id}")
        return content

    def finished_result(self) -> dict[str, Any]:
        """What came out; a run that is not complete yet is refused."""
        if (found := self.result()) is None:
            raise NotFinished(self.path)
        return found

    def check_model(self) -> str:
        """Refuse weights that are not those the run ended with, and return their SHA-256."""
        expected = _parsed(self.result_file, lambda content: content["model_sha256"])["model_sha256"]
        if sha256_of(self.model_file) != expected:
            raise ConfigError(f"{self.model_file} is damaged: its SHA-256 is not that of {self.result_file}")
        return str(expected)

    def load_weights(self, network: nn.Module) -> None:
        """Load the weights of this run into its network; loading runs no code that the file may hold."""
        config = self.config()
        try:
            with safe_open(self.model_file, framework="pt") as file:
                if (owner := (file.metadata() or {}).get("run_id")) != config.run_id:
                    raise RuntimeError(f"it belongs to {owner}")
            self.check_model()
            network.load_state_dict(load_file(self.model_file))
        except (OSError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:120]
            raise ConfigError(f"{self.model_file} is not a {config.model.name} of this run: {reason}") from None

    def metrics(self, epochs: int | None = None) -> list[dict[str, Any]]:
        """A dictionary for each epoch, or for each of the first ``epochs``."""
        lines = _read(self.metrics_file).splitlines()[:epochs] if self.metrics_file.exists() else []
        found = []
        for number, line in enumerate(lines, start=1):
            with damage_named(self.metrics_file, f" in line {number}"):
                found.append(json.loads(line))
                check_epoch(found[-1])
                if found[-1]["epoch"] != number:
                    raise ValueError("it is from another epoch")
        if epochs and len(found) < epochs:
            raise ConfigError(f"{self.metrics_file} is damaged: {len(found)} of {epochs} epochs are left")
        return found

    def write_metrics(self, epochs: list[dict[str, Any]]) -> None:
        """Replace all of them: after a resumption, those of epochs that are trained again are gone."""
        self.check_held()
        write_atomically(
            self.metrics_file, "".join(json.dumps(without_details(epoch)) + "\n" for epoch in epochs), make_folder=False
        )

    def write_data(self, dataset: ImageDataset, subset: LongTailedSubset, config: RunConfig) -> None:
        """Keep what is trained on: which images, the class index, how images are prepared, and where files are."""
        self.check_held()
        images, values = dataset.train, values_by_name(config)
        subset.save(
            self.data_file,
            dataset.name,
            dataset.classes,
            train_counts=dataset.counts.tolist(),
            mean=dataset.mean,
            std=dataset.std,
            input={name: getattr(dataset, name) for name in ("input_size", "interpolation", "crop_fraction")},
            image_shape=None if isinstance(images, ImageFiles) else list(images.images.shape[1:]),
            locations={name: str(values[name]) for name in LOCATIONS if values[name] is not None},
        )

    def check_data(self, dataset: ImageDataset, subset: LongTailedSubset, config: RunConfig) -> None:
        """Refuse to go on with other images or classes than the run began with; ``config`` is that of these."""
        began = self.data() | {"fingerprint": self.config().data.fingerprint}
        now = {
            "classes": list(dataset.classes),
            "labels_sha256": subset.labels_sha256,
            "sha256": subset.sha256,
            "fingerprint": config.data.fingerprint,
        }
        if any(began.get(name) != value for name, value in now.items()):
            raise ConfigError(
                f"{dataset.name} has changed since {self.path} began: the images are not those it was trained on"
            )

    def finish(
        self,
        config: RunConfig,
        network: nn.Module,
        epochs: list[dict[str, Any]],
        processes: int = 1,
        kept: int | None = None,
    ) -> None:
        """Write the weights, the model card, and then the result: whoever finds it finds a complete run.

        ``kept`` is the epoch that the weights are of, the last one by default.
        """
        weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        # A single entry of metadata: several have no fixed order in the file, and the same run is the same file.
        self.check_held()
        model = to_safetensors(weights, {"run_id": config.run_id})
        write_atomically(self.model_file, model, make_folder=False)
        result = {
            "run_id": config.run_id,
            "kept_epoch": kept or len(epochs),
            "final": epochs[(kept or len(epochs)) - 1],
            "best_error": min(epoch["error"] for epoch in epochs if "error" in epoch),
            "seconds": sum(epoch.get("seconds", 0.0) for epoch in epochs),
            "model_sha256": hashlib.sha256(model).hexdigest(),
            "processes": processes,
            "versions": versions(),
        }
        write_atomically(
            self.card_file, model_card(config, self.data(), result["final"], result["versions"]), make_folder=False
        )
        write_atomically(self.result_file, _readable(result) + "\n", make_folder=False)
        self.error_file.unlink(missing_ok=True)
        self.check_held()

    def write_adjustment(self, slug: str, content: dict[str, Any]) -> Path:
        """Keep an adjustment of the last layer, and how good it is."""
        path = self.path / "adjustments" / f"{slug}.json"
        write_atomically(path, _readable(content) + "\n")
        return path

    def adjustment(self, slug: str) -> dict[str, Any]:
        """One adjustment: its method, τ and metrics."""
        path = self.path / "adjustments" / f"{slug}.json"
        if not path.exists():
            there = ", ".join(sorted(each.stem for each in path.parent.glob("*.json"))) or "none"
            raise ConfigError(f"{self.path} has no adjustment {slug!r}; it has {there}")
        return _parsed(path, check_adjustment)

    def record_failure(self, config: RunConfig, error: BaseException | str) -> None:
        """Keep why the run ended without a result, where there is room for it; one that succeeds later removes it."""
        lines = traceback.format_exception(error) if isinstance(error, BaseException) else []
        record = {
            "error": " ".join(str(error).split()) or type(error).__name__,
            "traceback": "".join(lines),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with contextlib.suppress(OSError, ConfigError):
            if self._is_something_else() or (self.config_file.exists() and self.config() != config):
                return
            if not self.config_file.exists():
                write_atomically(self.config_file, config.to_json())
            write_atomically(self.error_file, json.dumps(record, indent=2) + "\n")

    def failure(self) -> dict[str, Any] | None:
        """Why the run ended without a result, if it did."""
        return _parsed(self.error_file, lambda content: content["error"]) if self.error_file.exists() else None


def names_of_images(runs: Path, fingerprint: str) -> set[str]:
    """What the runs of a folder call the images with this fingerprint."""
    names = set()
    for file in runs.glob("*/config.json"):
        with contextlib.suppress(ConfigError, OSError, UnicodeDecodeError):  # who needs that run says what is wrong
            if fingerprint in (text := file.read_text(encoding="utf-8")):
                names.add(RunConfig.from_json(text, file).data.name)
    return names


def _readable(content: Any, indent: str = "") -> str:
    """JSON with a line for each value: a list of thousands of classes is one of them."""
    if not isinstance(content, dict) or not content:
        return json.dumps(content)
    deeper = f"{indent}  "
    lines = [f"{deeper}{json.dumps(name)}: {_readable(value, deeper)}" for name, value in content.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    packages = ("longtail", "torch", "numpy", "lightning-fabric", "pillow")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not path.parent.exists():
            raise ConfigError(f"{path.parent} does not exist") from None
        inside = sorted(config.parent for config in path.parent.glob("*/config.json"))
        hint = f"; it holds {len(inside)} of them, such as {inside[0]}" if inside else ""
        raise ConfigError(f"{path.parent} is not a run folder: it has no {path.name}{hint}") from None
    except NotADirectoryError:
        raise ConfigError(f"{path.parent} is not a run folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _parsed(path: Path, check: Callable[[Any], object]) -> dict[str, Any]:
    text = _read(path)
    with damage_named(path):
        content: dict[str, Any] = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError(f"{content!r:.60} is not an object")
        check(content)
    return content
