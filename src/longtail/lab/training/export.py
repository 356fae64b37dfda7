"""Finished runs as ONNX files, and such files in use."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.lab.config import ConfigError
from longtail.lab.files import check_writable, write_atomically
from longtail.lab.training.adjustments import Adjustment
from longtail.lab.training.checks import check_preprocessing, damage_named
from longtail.lab.training.evaluation import load_run
from longtail.lab.training.metrics import log_probabilities
from longtail.lab.training.prediction import Transform
from longtail.lab.training.run_folder import RunFolder, versions

TOLERANCE = 1e-4
"""How much an output of ONNX Runtime may differ from that of PyTorch; of logits above 1, relative to the largest."""

LARGEST = 2**31 - 1
"""Bytes of an ONNX file."""


class _Network(nn.Module):
    """The network with its probabilities."""

    def __init__(self, model: nn.Module, loss: str) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(images)
        return logits, log_probabilities(logits, self.loss).exp()


def export_run(path: Path | str, output: Path | str, adjustment: str | None = None) -> dict[str, Any]:
    """Write the network of a finished run as an ONNX file, and check it against ONNX Runtime.

    It takes ``images``, float32 of shape (batch, channels, height, width), and gives ``logits`` and ``probabilities``
    of shape (batch, classes). Its metadata say how to prepare images: ``input_shape``, ``mean`` and ``std`` (of pixels
    from 0 to 255); and what comes out: ``class_names``. All of them are JSON.

    Args:
        path: the run folder.
        output: the file, which ends in .onnx; one that is there is replaced when the new one is whole and checked.
        adjustment: the slug of an adjustment of the run, which becomes part of the network.

    Returns:
        The metadata, ``bytes`` of the file, and the largest ``difference`` from PyTorch.

    Example:
        >>> export_run("runs/digits-…", "model.onnx")["input_shape"]  # doctest: +SKIP
        [1, 8, 8]
    """
    output = Path(output)
    if output.suffix != ".onnx":
        raise ConfigError(f"{output} does not end in .onnx")
    onnx = _imported("onnx")
    _imported("onnxruntime")
    _imported("onnxscript")  # which PyTorch needs
    check_writable(output.parent)
    run = load_run(path, adjustment)
    network = _Network(run.model, run.config.loss.name).eval()
    shape = run.transform.input_shape
    metadata = {
        "run_id": run.config.run_id,
        "class_names": list(run.classes),
        "input_shape": list(shape),
        "mean": run.transform.mean,
        "std": run.transform.std,
        "preprocessing": asdict(run.transform),
        "adjustment": adjustment
        and {"slug": adjustment, **asdict(Adjustment.from_content(RunFolder(run.path).adjustment(adjustment)))},
        "versions": versions(),
    }
    with _quietly():
        program: Any = torch.onnx.export(
            network,
            (torch.zeros(2, *shape),),
            dynamo=True,
            input_names=["images"],
            output_names=["logits", "probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
            verbose=False,
        )
        model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # where in the source it is from, on this machine
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    if model.ByteSize() > LARGEST:
        raise ConfigError(f"the network has {model.ByteSize():,} bytes: an ONNX file has at most {LARGEST:,}")
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    difference = _largest_difference(network, _session(content), shape)
    if not difference <= TOLERANCE:
        raise ConfigError(f"ONNX Runtime and PyTorch differ by {difference:.2g} on {run.path}: nothing was written")
    write_atomically(output, content)
    return metadata | {"bytes": len(content), "difference": difference}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says about packages and versions."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is missing: pip install 'longtail[export]'") from None


def _session(content: bytes) -> Any:
    runtime = _imported("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors, which are raised as well
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def _largest_difference(network: nn.Module, session: Any, shape: tuple[int, ...]) -> float:
    """Between PyTorch and ONNX Runtime, over batches of one image and of several."""
    draw = torch.Generator().manual_seed(0)
    largest = 0.0
    for size in (1, 3):
        images = torch.randn(size, *shape, generator=draw)
        for output, found in zip(network(images), session.run(None, {"images": images.numpy()}), strict=True):
            expected = output.numpy()
            difference = np.abs(expected - found).max() / max(1.0, np.abs(expected).max())
            largest = max(largest, float(difference)) if difference == difference else float("nan")
    return largest


@dataclass(frozen=True)
class ExportedModel:
    """A network in an ONNX file, with all that is needed to use it.

    Example:
        >>> from longtail.lab.training import load_exported, predict
        >>> list(predict(load_exported("model.onnx"), [Path("photo.png")], top=1))  # doctest: +SKIP
        [{'path': 'photo.png', 'classes': ['7'], 'probabilities': [0.93]}]
    """

    path: Path
    session: Any
    """Of ONNX Runtime."""
    transform: Transform
    """From an image file to what the network takes, shape (channels, height, width)."""
    classes: tuple[str, ...]

    def probabilities(self, images: Tensor) -> Tensor:
        """Of each class, for images that were transformed, shape (N, C)."""
        (found,) = self.session.run(["probabilities"], {"images": images.numpy()})
        values = torch.from_numpy(found)
        if not values.isfinite().all():
            raise ConfigError(f"the outputs of {self.path} are not finite numbers")
        return values


def load_exported(path: Path | str) -> ExportedModel:
    """Load a network that :func:`export_run` wrote.

    Args:
        path: the ONNX file.

    Example:
        >>> load_exported("nowhere.onnx")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.onnx'
    """
    path = Path(path)
    content = path.read_bytes()
    _imported("onnxruntime")
    try:
        session = _session(content)
    except Exception as error:  # of onnxruntime, which has a class for each of many causes
        raise ConfigError(f"{path} is not a readable ONNX file: {' '.join(str(error).split())[:120]}") from None
    metadata = session.get_modelmeta().custom_metadata_map
    if not {"class_names", "preprocessing"} <= metadata.keys():
        raise ConfigError(f"{path} was not written by longtail export: it has no class_names and preprocessing")
    with damage_named(path):
        classes, preprocessing = (json.loads(metadata[name]) for name in ("class_names", "preprocessing"))
        check_preprocessing(preprocessing)
        shapes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
        transform = Transform(**preprocessing)
        if shapes["images"][1:] != list(transform.input_shape):
            raise ValueError(f"preprocessing does not fit its input {shapes['images'][1:]}")
        if not all(isinstance(name, str) for name in classes) or shapes["probabilities"][1:] != [len(classes)]:
            raise ValueError(f"class_names are {len(classes)}, but it has {shapes['probabilities'][1:]} outputs")
    return ExportedModel(path, session, transform, tuple(classes))
