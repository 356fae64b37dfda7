"""The published numbers beside cells that were typed in by hand."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig
from longtail.lab.data import CATALOG, FoldOptions, SubsetOptions
from longtail.lab.experiments.published import published
from longtail.lab.recipes import cifar, imagenet


def cifar_run(data, imbalance, loss, gamma=None, beta=None, **values):
    return RunConfig(
        data=DataConfig(name=data, subset=SubsetOptions(imbalance=imbalance)),
        loss=LossConfig(name=loss, gamma=gamma, beta=beta),
        **values,
    )


def large_run(data, model, size, loss):
    return replace(imagenet(DataConfig(name=data, image_size=size), loss), model=ModelConfig(name=model))


SOFTMAX, CB_FOCAL = LossConfig(), LossConfig(name="focal", gamma=0.5, beta=0.999)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (("cifar10", 200, "softmax"), 34.32),
        (("cifar10", 100, "sigmoid"), 29.55),
        (("cifar10", 50, "focal", 0.5), 23.28),
        (("cifar10", 20, "focal", 1.0), 17.24),
        (("cifar10", 10, "focal", 2.0), 13.68),
        (("cifar10", 1, "softmax"), 6.61),
        (("cifar100", 200, "focal", 2.0), 65.25),
        (("cifar100", 100, "focal", 1.0), 61.59),
        (("cifar100", 50, "softmax"), 56.15),
        (("cifar100", 20, "sigmoid"), 48.57),
        (("cifar100", 10, "focal", 0.5), 44.30),
        (("cifar100", 1, "focal", 1.0), 28.85),
        (("cifar10", 200, "softmax", None, 0.9999), 31.11),
        (("cifar10", 100, "focal", 1.0, 0.9999), 25.43),
        (("cifar10", 50, "focal", 2.0, 0.9999), 20.73),
        (("cifar10", 20, "softmax", None, 0.9999), 15.64),
        (("cifar10", 10, "sigmoid", None, 0.9999), 12.51),
        (("cifar100", 200, "focal", 1.0, 0.9), 63.77),
        (("cifar100", 100, "focal", 1.0, 0.9), 60.40),
        (("cifar100", 50, "sigmoid", None, 0.99), 54.68),
        (("cifar100", 20, "focal", 0.5, 0.99), 47.41),
        (("cifar100", 10, "focal", 0.5, 0.999), 42.01),
    ],
)
def test_table_2_whatever_the_epochs_and_the_seed(setting, error):
    config = cifar_run(*setting)
    entry = published(config)
    assert (entry.error, entry.error_top5, entry.source) == (error, None, "Cui et al. 2019, Table 2")
    short = replace(cifar(config.data, config.loss, epochs=3), seed=7)
    assert published(short) == entry


@pytest.mark.parametrize(
    ("data", "model", "size", "loss", "errors"),
    [
        ("inaturalist2017", "resnet50", 224, SOFTMAX, (45.38, 22.67)),
        ("inaturalist2018", "resnet101", 224, SOFTMAX, (39.47, 18.86)),
        ("imagenet", "resnet152", 224, SOFTMAX, (21.68, 5.92)),
        ("inaturalist2017", "resnet152", 224, CB_FOCAL, (38.06, 18.42)),
        ("imagenet", "resnet50", 224, CB_FOCAL, (22.71, 6.72)),
        ("inaturalist2018", "resnet50", 320, CB_FOCAL, (35.84, 16.85)),
        ("imagenet", "resnet101", 320, CB_FOCAL, (20.25, 5.34)),
        ("inaturalist2018", "resnet152", 320, CB_FOCAL, (30.95, 13.54)),
    ],
)
def test_table_3(data, model, size, loss, errors):
    entry = published(large_run(data, model, size, loss))
    assert (entry.error, entry.error_top5) == errors
    assert entry.source == "Cui et al. 2019, Table 3"


@pytest.mark.parametrize("imbalance", [None, 1])
@pytest.mark.parametrize(("data", "error"), [("cifar10", 6.36), ("cifar100", 28.39)])
def test_with_equal_classes_the_class_balanced_sigmoid_is_the_plain_one(data, error, imbalance):
    for beta in (None, 0.9, 0.9999):
        assert published(cifar_run(data, imbalance, "sigmoid", beta=beta)).error == error


BASE = cifar_run("cifar10", 100, "softmax")


@pytest.mark.parametrize(
    "config",
    [
        replace(BASE, model=ModelConfig(name="resnet20")),
        cifar_run("cifar20", 100, "softmax"),
        cifar_run("digits", 100, "softmax"),
        cifar_run("cifar10", 30, "softmax"),
        cifar_run("cifar10", 100, "softmax", beta=0.9999),
        cifar_run("cifar10", 100, "focal", gamma=1.5),
        cifar_run("cifar10", 100, "focal", gamma=1.0, beta=0.999),
        replace(BASE, loss=LossConfig(weighting="inverse")),
        replace(BASE, loss=LossConfig(name="ldam")),
        replace(BASE, data=replace(BASE.data, mixup=0.2)),
        replace(BASE, data=replace(BASE.data, sampling="square_root")),
        replace(BASE, model=ModelConfig(weights="runs/parent")),
        replace(cifar_run("cifar10", 200, "softmax"), loss=LossConfig(beta=0.9999, defer_reweighting=0.8)),
        replace(BASE, data=replace(BASE.data, fold=FoldOptions(folds=5, fold=0))),
        replace(BASE, data=replace(BASE.data, subset=SubsetOptions(imbalance=100, profile="step"))),
        replace(BASE, data=replace(BASE.data, subset=SubsetOptions(imbalance=100, max_count=500))),
        replace(
            cifar_run("cifar10", 200, "softmax"), loss=LossConfig(beta=0.9999, normalize="samples")
        ),  # of which there is one with weights that are 1 on average over classes
        # Of equal classes, one β for all gives no weights, but one for each does.
        replace(cifar_run("cifar10", 1, "sigmoid"), loss=LossConfig(name="sigmoid", betas=(0.9,) * 9 + (1.0,))),
        large_run("imagenet", "resnet50", 320, SOFTMAX),
        large_run("imagenet", "resnet34", 224, SOFTMAX),
        large_run("imagenet", "resnet50", 224, LossConfig(name="focal", beta=0.99)),
        replace(
            large_run("imagenet", "resnet50", 224, SOFTMAX),
            data=DataConfig(name="imagenet", subset=SubsetOptions(imbalance=1)),
        ),
    ],
)
def test_what_the_paper_has_not_got_has_no_entry(config):
    assert published(config) is None


def test_how_weights_of_one_are_normalized_makes_no_difference():
    assert published(replace(BASE, loss=LossConfig(weighting="uniform", normalize="samples"))).error == 29.64


def test_all_cells_are_there_once_and_under_names_that_exist():
    entries = json.loads(resources.files("longtail.lab.experiments").joinpath("published.json").read_text())
    in_table_3 = [entry["source"].endswith("Table 3") for entry in entries]
    assert (len(entries), sum(in_table_3)) == (6 * 12 + 9 * 3, 9 * 3)
    names = ("data", "imbalance", "model", "loss", "gamma", "weighting", "beta", "image_size")
    assert len({tuple(entry.get(name) for name in names) for entry in entries}) == len(entries)
    assert {entry["data"] for entry in entries} < set(CATALOG)
    assert {entry["model"] for entry in entries} == {"resnet32", "resnet50", "resnet101", "resnet152"}
    # The sum of a column, as a check of cells that are not typed in above.
    column = [entry for entry in entries if (entry["data"], entry["imbalance"]) == ("cifar100", 20)]
    assert sum(entry["error"] for entry in column) == pytest.approx(48.86 + 48.57 + 48.90 + 48.05 + 48.98 + 47.41)
    plain = [entry["error"] for entry in entries if entry["weighting"] == "uniform" and "image_size" not in entry]
    assert len(plain) == 60
    class_balanced = {
        (entry["data"], entry["model"], entry.get("image_size")): (entry["error"], entry["error_top5"])
        for entry in entries
        if entry["weighting"] == "effective" and "image_size" in entry
    }
    for (data, model, size), errors in class_balanced.items():
        if size == 320:  # larger images are better for every network and data set of the table
            assert errors < class_balanced[data, model, 224]
