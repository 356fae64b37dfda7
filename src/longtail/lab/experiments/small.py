"""A protocol that a laptop can repeat: the paper's comparison and what came after it, with a small network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longtail._checks import check_choice
from longtail.lab.config import LossConfig, ModelConfig, RunConfig
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.paper import long_tailed, losses
from longtail.lab.experiments.published import published_entries
from longtail.lab.recipes import cifar

__all__ = ["SMALL_DATASETS", "small_parents", "small_protocol"]

SMALL_DATASETS = ("cifar10", "cifar100")
EPOCHS = 20
PLAIN = LossConfig()


def small_protocol(dataset: str) -> list[RunConfig]:
    """ResNet-8 on CIFAR-10 or CIFAR-100 at imbalance 100 and 50, with the paper's recipe shortened to 20 epochs.

    Softmax, sigmoid and focal loss (γ = 1), each plain and with the β of the paper's best loss there; softmax weighted
    by inverse frequency and by its square root; and what came after the paper: weights that are 1 on average over
    samples, deferred weights, balanced softmax, LDAM with deferred weights, and class-balanced sampling. At 50 also
    softmax with each β of figure 5.

    Example:
        >>> runs = small_protocol("cifar100")
        >>> len(runs), [run.loss.slug for run in runs[:4]]
        (29, ['softmax', 'softmax_0.9', 'sigmoid', 'sigmoid_0.9'])
    """
    check_choice("dataset", dataset, SMALL_DATASETS)
    runs = [run for imbalance in (100.0, 50.0) for run in _compared(dataset, imbalance)]
    runs += [_run(dataset, 50.0, LossConfig(beta=beta)) for beta in BETAS]
    return list(dict.fromkeys(runs))  # the β of the paper's best loss is one of figure 5, too


def small_parents(runs: Sequence[RunConfig]) -> list[RunConfig]:
    """The plain softmax runs, whose heads are retrained (cRT) and adjusted (τ-normalisation, logit adjustment).

    Example:
        >>> [run.title for run in small_parents(small_protocol("cifar10"))]
        ['softmax', 'softmax']
    """
    return [run for run in runs if run.title == "softmax"]


def _compared(dataset: str, imbalance: float) -> list[RunConfig]:
    beta = _paper_beta(dataset, imbalance)
    chosen = losses(betas=(None, beta), gammas=(1.0,))
    chosen += [LossConfig(weighting="inverse"), LossConfig(weighting="inverse_sqrt")]
    chosen += [LossConfig(beta=beta, normalize="samples"), LossConfig(name="logit_adjusted")]
    runs = [_run(dataset, imbalance, loss) for loss in chosen]
    deferred = [LossConfig(name=loss, beta=beta, defer_reweighting=0.8) for loss in ("softmax", "ldam")]
    runs += [_run(dataset, imbalance, loss) for loss in deferred]
    plain = _run(dataset, imbalance, PLAIN)
    return [*runs, replace(plain, data=replace(plain.data, sampling="class_balanced"))]


def _run(dataset: str, imbalance: float, loss: LossConfig) -> RunConfig:
    config = cifar(long_tailed(dataset, imbalance), loss, EPOCHS)
    return replace(config, model=ModelConfig(name="resnet8"), test_every=5)


def _paper_beta(dataset: str, imbalance: float) -> float:
    """That of the best loss of Table 2."""
    (beta,) = (
        entry["beta"]
        for entry in published_entries()
        if (entry["data"], entry["imbalance"], entry["weighting"]) == (dataset, imbalance, "effective")
    )
    return float(beta)
