r"""Adjustments of a trained last layer: τ-normalisation, another class prior, and a temperature."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail._checks import check_choice, check_non_negative
from longtail.counts import IntArray
from longtail.heads import NormedLinear, adjust_logits
from longtail.lab.config import ConfigError, RunConfig, config_errors, shortest
from longtail.lab.training.metrics import ClassifierMetrics, log_probabilities

METHODS = ("tau_norm", "logit_adjustment")

TEMPERATURES = (0.05, 20.0)
"""Limits: where a network is right on all validation images, no temperature is low enough."""


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    r"""What is changed in a trained last layer, in this order.

    .. math:: w_j \leftarrow w_j / \lVert w_j \rVert^\tau, \; b_j \leftarrow 0 \;(\text{tau\_norm}), \qquad
        (w_j, b_j) \leftarrow (w_j, b_j) / T, \qquad
        b_j \leftarrow b_j - \tau \log \pi_j + \log q_j \;(\text{logit\_adjustment})

    π is the class prior of the training images, q the prior to expect: uniform, unless there is another one.

    Example:
        >>> Adjustment(method="tau_norm", tau=0.5, temperature=1.2).slug
        'tau_norm_0.5_calibrated'
    """

    method: str | None = None
    """``"tau_norm"`` or ``"logit_adjustment"``; None changes the temperature alone."""
    tau: float = 1.0
    prior: tuple[float, ...] | None = None
    """q; None is uniform."""
    prior_name: str | None = None
    """What q is called."""
    temperature: float | None = None
    """T; None is 1."""

    @property
    def slug(self) -> str:
        """For the name of its file."""
        parts = [] if self.method is None else [self.method, shortest(float(self.tau))]
        if self.prior_name is not None:
            parts = ["prior", re.sub(r"[^\w.]+", "_", self.prior_name)]
        return "_".join([*parts, *self._calibrated])

    @property
    def title(self) -> str:
        """For people.

        Example:
            >>> Adjustment(method="tau_norm", tau=0.5).title, Adjustment(temperature=1.2).title
            ('τ-norm τ 0.5', 'calibrated')
        """
        names = {"tau_norm": "τ-norm", "logit_adjustment": "logit adjustment"}
        parts = [] if self.method is None else [f"{names.get(self.method, self.method)} τ {shortest(float(self.tau))}"]
        if self.prior_name is not None:
            parts = [f"prior {self.prior_name}"]
        return ", ".join([*parts, *self._calibrated])

    @property
    def _calibrated(self) -> list[str]:
        return [] if self.temperature is None else ["calibrated"]

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        """From what its file holds."""
        values = {item.name: content.get(item.name, item.default) for item in fields(cls)}
        return cls(**values | {"prior": values["prior"] and tuple(values["prior"])})


def choose_adjustment(
    config: RunConfig,
    classes: tuple[str, ...],
    counts: IntArray,
    method: str | None = None,
    tau: float = 1.0,
    prior: Path | str | None = None,
) -> Adjustment:
    """The adjustment that is asked for, if it corrects for the class prior once.

    The outputs of a network have the prior that its loss assumed: that of the training images for a plain loss, the
    uniform one for balanced softmax. With class weights or class-aware sampling it lies somewhere between.

    Args:
        config: of the run.
        classes: names.
        counts: training images of each class.
        method: ``"tau_norm"`` or ``"logit_adjustment"``.
        tau: τ ≥ 0 of the method.
        prior: the class prior to expect, instead of a method: ``"uniform"``, ``"train"``, or a CSV file with a class
            and its share a row. ``"uniform"`` is logit adjustment with τ = 1.
    """
    with config_errors():
        if method is not None:
            check_choice("method", method, METHODS)
        check_non_negative("tau", tau)
    if prior is None and method != "logit_adjustment":
        return Adjustment(method=method, tau=float(tau))
    asked = "logit_adjustment" if prior is None else f"prior {prior}"
    if method is not None and prior is not None:
        raise ConfigError(f"{method} and {asked} would correct for the class prior twice: choose one of them")
    if config.data.sampling != "shuffled" or not config.loss.is_plain:
        cause = "class weights" if config.data.sampling == "shuffled" else f"{config.data.sampling} sampling"
        raise ConfigError(f"{asked} would correct twice: {cause} did so in training")
    is_balanced = config.loss.name == "logit_adjusted"  # balanced softmax, if its own τ is 1
    if is_balanced and (prior in (None, "uniform") or config.loss.tau != 1):
        raise ConfigError(f"{asked} would correct twice: balanced softmax did so in training")
    if prior in (None, "uniform"):
        return Adjustment(method="logit_adjustment", tau=float(tau))
    if prior == "train" and not is_balanced:
        return Adjustment()  # it has that prior already
    shares, name = counts / counts.sum(), "train"
    if prior != "train":
        shares, name = read_prior(Path(str(prior)), classes), Path(str(prior)).stem
    return Adjustment(
        method="logit_adjustment", tau=0.0 if is_balanced else 1.0, prior=tuple(shares.tolist()), prior_name=name
    )


def read_prior(path: Path, classes: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Class shares from a CSV file with a class and its share, or its number of images, in each row."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the prior {path}: {getattr(error, 'strerror', None) or error}") from None
    found: dict[str, float] = {}
    for number, row in enumerate(rows):
        try:
            name, share = row[0], float(row[1])
        except (IndexError, ValueError):
            if not number and len(row) == 2:
                continue  # names of the columns
            raise ConfigError(f"{path}, row {number + 1}: a class and its share are needed, got {row!r:.60}") from None
        if name in found or name not in classes:
            problem = "is there twice" if name in found else "is not among the classes of the run"
            raise ConfigError(f"{path}, row {number + 1}: class {name!r} {problem}")
        if not 0 < share < math.inf:
            raise ConfigError(f"{path}, row {number + 1}: the share of {name!r} must be above 0, got {row[1]}")
        found[name] = share
    if missing := [name for name in classes if name not in found]:
        raise ConfigError(f"{path} has no share of class {missing[0]!r}")
    total = math.fsum(found.values())
    return np.array([found[name] / total for name in classes])


@torch.no_grad()
def adjust_(layer: nn.Module, adjustment: Adjustment, counts: IntArray) -> None:
    """Change a trained last layer, in place.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> adjust_(layer, Adjustment(method="tau_norm"), np.array([900, 100]))
        >>> layer.weight.data, layer.bias.data
        (tensor([[0.6000, 0.8000],
                [0.0000, 1.0000]]), tensor([0., 0.]))

    Reference:
        Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020, section 4;
        Menon et al., *Long-Tail Learning via Logit Adjustment*, ICLR 2021;
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """
    method, temperature, prior = adjustment.method, adjustment.temperature, adjustment.prior
    if method is not None:
        with config_errors():
            check_choice("method", method, METHODS)
    if prior is not None and len(prior) != len(counts):
        raise ConfigError(f"the prior has {len(prior)} shares, but the run has {len(counts)} classes")
    if not isinstance(layer, nn.Linear) or (layer.bias is None and method is not None):
        wanted = f"{method or 'a temperature'} requires a linear last layer" + (" with a bias" if method else "")
        raise ConfigError(f"{wanted}, not {type(layer).__name__}")
    if method == "tau_norm":
        weights = layer.weight.double()
        layer.weight.copy_(weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-12) ** adjustment.tau)
        layer.bias.zero_()
    if temperature is not None and isinstance(layer, NormedLinear):
        layer.scale /= temperature
    elif temperature is not None:
        for part in (layer.weight, *([] if layer.bias is None else [layer.bias])):
            part.div_(temperature)
    if method == "logit_adjustment":
        with config_errors():
            bias = adjust_logits(layer.bias.double(), counts, adjustment.tau)
        layer.bias.copy_(bias if prior is None else bias + torch.tensor(prior, dtype=torch.float64).log())


def fit_temperature(
    logits: Tensor, labels: Tensor, loss: str, counts: IntArray, shift: Tensor | float = 0.0
) -> tuple[float, dict[str, dict[str, float]]]:
    r"""The temperature that makes validation images most likely.

    .. math:: \hat T = \arg\min_T -\sum_n \log p_{y_n}(z_n / T + s)

    Args:
        logits: of validation images, shape (N, C).
        labels: their classes, shape (N,).
        loss: that the network was trained with, for its probabilities.
        counts: training images of each class.
        shift: s, to the class prior of the validation images, shape (C,).

    Returns:
        The temperature, and ``nll`` and ``calibration_error`` of the validation images ``before`` and ``after``.

    Example:
        >>> logits = torch.tensor([[6.0, 0.0], [6.0, 0.0], [6.0, 0.0], [6.0, 0.0]])
        >>> temperature, found = fit_temperature(logits, torch.tensor([0, 0, 0, 1]), "softmax", np.array([3, 1]))
        >>> round(temperature, 2), round(found["after"]["calibration_error"], 2)  # σ(6/T) = 3/4
        (5.46, 0.0)
    """
    from scipy.optimize import minimize_scalar  # slow to import

    def nll(log_temperature: float) -> float:
        scores = log_probabilities(logits / math.exp(log_temperature) + shift, loss)
        return F.nll_loss(scores, labels).item()

    def measure(temperature: float) -> dict[str, float]:
        metrics = ClassifierMetrics(counts, loss)
        metrics.update(logits / temperature + shift, labels)
        found = metrics.compute()
        return {name: found[name] for name in ("nll", "calibration_error")}

    limits = tuple(math.log(limit) for limit in TEMPERATURES)
    temperature = math.exp(minimize_scalar(nll, bounds=limits, options={"xatol": 1e-4}).x)
    return temperature, {"before": measure(1.0), "after": measure(temperature)}
