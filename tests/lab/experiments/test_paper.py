"""The paper's tables and figures, counted by hand."""

from collections import Counter

import pytest

from longtail.lab.config import ConfigError
from longtail.lab.experiments import (
    SWEEPS,
    beta_sweep,
    heatmap,
    published,
    rescaled,
    table2,
    table3,
    training_curves,
)

ROWS = [
    *("softmax", "softmax_0.9", "softmax_0.99", "softmax_0.999", "softmax_0.9999"),
    *("sigmoid", "sigmoid_0.9", "sigmoid_0.99", "sigmoid_0.999", "sigmoid_0.9999"),
    *("focal_0.5", "focal_0.5_0.9", "focal_0.5_0.99", "focal_0.5_0.999", "focal_0.5_0.9999"),
    *("focal_1", "focal_1_0.9", "focal_1_0.99", "focal_1_0.999", "focal_1_0.9999"),
    *("focal_2", "focal_2_0.9", "focal_2_0.99", "focal_2_0.999", "focal_2_0.9999"),
]


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_table_2_has_every_cell_of_the_paper(dataset):
    runs = table2(dataset)
    cells = Counter(run.data.subset.imbalance for run in runs)
    assert cells == {200: 6, 100: 6, 50: 6, 20: 6, 10: 6, 1: 5}
    assert all(published(run) is not None for run in runs)
    assert {run.model.name for run in runs} == {"resnet32"}
    assert len({run.run_id for run in runs}) == 35


def test_the_heatmaps_have_the_rows_and_columns_of_the_appendix():
    for dataset in ("cifar10", "cifar20", "cifar100"):
        runs = heatmap(dataset)
        assert list(dict.fromkeys(run.loss.slug for run in runs)) == ROWS
        assert Counter(run.data.subset.imbalance for run in runs) == {200: 25, 100: 25, 50: 25, 20: 25, 10: 25}
    column = [run for run in heatmap("cifar10") if run.data.subset.imbalance == 50]
    assert column == beta_sweep("cifar10")
    assert {run for run in table2("cifar10") if run.data.subset.imbalance > 1} <= set(heatmap("cifar10"))


@pytest.mark.parametrize("dataset", ["inaturalist2017", "inaturalist2018", "imagenet"])
def test_table_3_has_three_networks_two_losses_and_two_sizes(dataset):
    runs = table3(dataset)
    settings = Counter((run.loss.slug, run.data.image_size) for run in runs)
    assert settings == {("softmax", None): 3, ("focal_0.5_0.999", None): 3, ("focal_0.5_0.999", 320): 3}
    assert all(published(run).error_top5 for run in runs)
    focal, softmax = (next(run for run in runs if run.loss.name == name) for name in ("focal", "softmax"))
    factor = 2 if dataset == "imagenet" else 4
    assert focal.optimizer.lr == pytest.approx(factor * softmax.optimizer.lr)
    assert set(training_curves(dataset)) <= set(runs)


def test_a_sweep_can_be_scaled():
    runs = rescaled(beta_sweep("cifar10"), epochs=30, model="resnet8", batch_size=64, seeds=3)
    assert len(runs) == 75
    assert {(run.model.name, run.optimizer.epochs, run.optimizer.batch_size) for run in runs} == {("resnet8", 30, 64)}
    assert runs[0].optimizer.milestones == (24.0, 27.0)
    assert Counter(run.seed for run in runs) == {0: 25, 1: 25, 2: 25}
    for values, message in (
        ({"seeds": 0}, "seeds"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(ConfigError, match=message):
            rescaled(beta_sweep("cifar10"), **values)


def test_every_sweep_works_for_the_data_sets_it_names_and_for_no_other():
    for sweep in SWEEPS.values():
        for dataset in sweep.datasets:
            assert {run.data.name for run in sweep.runs(dataset)} == {dataset}
        with pytest.raises(ValueError, match="dataset"):
            sweep.runs("digits")
