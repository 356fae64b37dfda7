"""The tables and figures of the paper as lists of run configurations, and a protocol that a laptop can repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longtail._checks import check_choice, check_positive_integer
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, config_errors
from longtail.lab.data import SubsetOptions
from longtail.lab.data.summary import BETAS
from longtail.lab.experiments.published import published_entries
from longtail.lab.recipes import cifar, imagenet
from longtail.losses import owners_of

CIFAR = ("cifar10", "cifar20", "cifar100")
CIFAR_TABLE2 = ("cifar10", "cifar100")
LARGE = ("inaturalist2017", "inaturalist2018", "imagenet")
IMBALANCES = (200.0, 100.0, 50.0, 20.0, 10.0)
GAMMAS = (0.5, 1.0, 2.0)
SMALL_EPOCHS = 20


def losses(
    betas: Sequence[float | None] = (None, *BETAS),
    gammas: Sequence[float] = GAMMAS,
    kinds: Sequence[str] = ("softmax", "sigmoid", "focal"),
) -> list[LossConfig]:
    """Softmax, sigmoid and focal losses of each γ, or other ones, each with each β; None is the plain loss.

    Example:
        >>> [loss.slug for loss in losses(betas=(None, 0.99), gammas=(0.5,))]
        ['softmax', 'softmax_0.99', 'sigmoid', 'sigmoid_0.99', 'focal_0.5', 'focal_0.5_0.99']
    """
    with_gamma = [(kind, gamma) for kind in kinds for gamma in (gammas if kind in owners_of("gamma") else (None,))]
    return [LossConfig(name=loss, gamma=gamma, beta=beta) for loss, gamma in with_gamma for beta in betas]


def table2(dataset: str) -> list[RunConfig]:
    """Table 2: ResNet-32 with plain losses and the best class-balanced one, at six imbalances of CIFAR-10 or CIFAR-100.

    Example:
        >>> len(table2("cifar10")), table2("cifar10")[-1].loss.slug
        (35, 'sigmoid_0.9999')
    """
    check_choice("dataset", dataset, CIFAR_TABLE2)
    chosen = [entry for entry in published_entries() if entry["data"] == dataset]
    return [
        cifar(long_tailed(dataset, entry["imbalance"]), _loss(entry))
        for entry in chosen
        # Of equal classes, the class-balanced loss is the plain one.
        if entry["imbalance"] > 1 or entry["weighting"] == "uniform"
    ]


def beta_sweep(dataset: str) -> list[RunConfig]:
    """Figure 5: all losses with and without the class-balanced term, each β, at imbalance 50.

    Example:
        >>> len(beta_sweep("cifar100"))
        25
    """
    check_choice("dataset", dataset, CIFAR)
    return [cifar(long_tailed(dataset, 50.0), loss) for loss in losses()]


def heatmap(dataset: str) -> list[RunConfig]:
    """Figures of appendix A: 5 losses, without the term and with 4 β, at 5 imbalances.

    Example:
        >>> len(heatmap("cifar20")), heatmap("cifar20")[74].loss.slug
        (125, 'focal_0.5_0.9999')
    """
    check_choice("dataset", dataset, CIFAR)
    return [cifar(long_tailed(dataset, imbalance), loss) for loss in losses() for imbalance in IMBALANCES]


def table3(dataset: str) -> list[RunConfig]:
    """Table 3: ResNet-50, -101 and -152 with softmax and class-balanced focal loss, inputs of 224 and 320 pixels.

    Example:
        >>> [(run.model.name, run.loss.slug, run.data.image_size) for run in table3("inaturalist2018")][-1]
        ('resnet152', 'focal_0.5_0.999', 320)
    """
    check_choice("dataset", dataset, LARGE)
    entries = [entry for entry in published_entries() if entry["data"] == dataset]
    sizes = {224: None, 320: 320}  # the networks' own, and a larger one
    return [
        replace(
            imagenet(DataConfig(name=dataset, image_size=sizes[entry["image_size"]]), _loss(entry)),
            model=ModelConfig(name=entry["model"]),
        )
        for entry in entries
    ]


def training_curves(dataset: str) -> list[RunConfig]:
    """Figure 7: ResNet-50 with softmax and with class-balanced focal loss; of CIFAR, ResNet-32 at imbalance 50.

    Example:
        >>> [run.loss.slug for run in training_curves("imagenet")]
        ['softmax', 'focal_0.5_0.999']
    """
    check_choice("dataset", dataset, (*LARGE, *CIFAR))
    pair = (LossConfig(), LossConfig(name="focal", gamma=0.5, beta=0.999))
    if dataset in CIFAR:
        return [cifar(long_tailed(dataset, 50.0), loss) for loss in pair]
    return [imagenet(DataConfig(name=dataset), loss) for loss in pair]


@config_errors()
def rescaled(
    configs: Sequence[RunConfig],
    *,
    epochs: int | None = None,
    model: str | None = None,
    batch_size: int | None = None,
    seeds: int = 1,
) -> list[RunConfig]:
    """The same runs at another scale, once for each seed.

    Args:
        configs: of one seed.
        epochs: of each run; its schedule is stretched with them.
        model: the network of all of them.
        batch_size: images of a step; the learning rate goes with it.
        seeds: how many, from 0 on.

    Example:
        >>> runs = rescaled(table2("cifar10"), epochs=20, model="resnet8", seeds=3)
        >>> len(runs), runs[0].model.name, runs[0].optimizer.milestones, runs[1].seed
        (105, 'resnet8', (16.0, 18.0), 1)
    """
    check_positive_integer("seeds", seeds)
    if not configs:
        raise ConfigError("the sweep has no runs")
    changed = []
    for config in configs:
        optimizer = config.optimizer.with_epochs(epochs)
        optimizer = replace(optimizer, batch_size=optimizer.batch_size if batch_size is None else batch_size)
        network = config.model if model is None else replace(config.model, name=model)
        changed += [replace(config, model=network, optimizer=optimizer, seed=seed) for seed in range(seeds)]
    return changed


def long_tailed(dataset: str, imbalance: float) -> DataConfig:
    """A long-tailed data set."""
    return DataConfig(name=dataset, subset=SubsetOptions(imbalance=float(imbalance)))


def _loss(entry: Mapping[str, object]) -> LossConfig:
    values: dict[str, Any] = {name: entry[name] for name in ("weighting", "beta", "gamma")}
    return LossConfig(name=str(entry["loss"]), **values)


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
    check_choice("dataset", dataset, CIFAR_TABLE2)
    runs = [run for imbalance in (100.0, 50.0) for run in _compared(dataset, imbalance)]
    runs += [_small_run(dataset, 50.0, LossConfig(beta=beta)) for beta in BETAS]
    return list(dict.fromkeys(runs))  # the β of the paper's best loss is one of figure 5, too


def _compared(dataset: str, imbalance: float) -> list[RunConfig]:
    beta = _paper_beta(dataset, imbalance)
    chosen = losses(betas=(None, beta), gammas=(1.0,))
    chosen += [LossConfig(weighting="inverse"), LossConfig(weighting="inverse_sqrt")]
    chosen += [LossConfig(beta=beta, normalize="samples"), LossConfig(name="logit_adjusted")]
    runs = [_small_run(dataset, imbalance, loss) for loss in chosen]
    deferred = [LossConfig(name=loss, beta=beta, defer_reweighting=0.8) for loss in ("softmax", "ldam")]
    runs += [_small_run(dataset, imbalance, loss) for loss in deferred]
    plain = _small_run(dataset, imbalance, LossConfig())
    return [*runs, replace(plain, data=replace(plain.data, sampling="class_balanced"))]


def _small_run(dataset: str, imbalance: float, loss: LossConfig) -> RunConfig:
    config = cifar(long_tailed(dataset, imbalance), loss, SMALL_EPOCHS)
    return replace(config, model=ModelConfig(name="resnet8"), test_every=5)


def _paper_beta(dataset: str, imbalance: float) -> float:
    """That of the best loss of Table 2."""
    (beta,) = (
        entry["beta"]
        for entry in published_entries()
        if (entry["data"], entry["imbalance"], entry["weighting"]) == (dataset, imbalance, "effective")
    )
    return float(beta)


@dataclass(frozen=True)
class Sweep:
    """A table or figure of the paper, or the protocol for a laptop."""

    runs: Callable[[str], list[RunConfig]]
    """The runs on a data set."""
    datasets: tuple[str, ...]
    """What the paper has it for."""
    about: str
    seeds: int = 1
    """Default number of seeds."""


SWEEPS: Mapping[str, Sweep] = {
    "table2": Sweep(table2, CIFAR_TABLE2, "plain losses and the best class-balanced one, 6 imbalances"),
    "beta_sweep": Sweep(beta_sweep, CIFAR, "figure 5: all losses with and without the term, each β, imbalance 50"),
    "heatmap": Sweep(heatmap, CIFAR, "appendix A: 5 losses, plain and with 4 β, 5 imbalances"),
    "table3": Sweep(table3, LARGE, "ResNet-50, -101, -152, softmax and class-balanced focal, 224 and 320 pixels"),
    "training_curves": Sweep(training_curves, (*LARGE, *CIFAR), "figure 7: softmax against class-balanced focal"),
    "small": Sweep(
        small_protocol, CIFAR_TABLE2, "ResNet-8, 20 epochs, imbalance 100 and 50: for a laptop, 2 seeds", seeds=2
    ),
}
