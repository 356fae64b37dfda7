"""β from images: features, the radius, and what follows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.lab.advice import advise, network_features, pixel_features, view_distances
from longtail.lab.config import ConfigError, RunOptions
from longtail.lab.data import ImageDataset, InMemoryImages, evaluation_loader, open_dataset
from longtail.lab.training import load_run, train
from longtail.weights import class_weights
from tests.lab.training.runs import small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return load_run(train(small_config(epochs=2), RunOptions(runs=tmp_path_factory.mktemp("runs"), accelerator="cpu")))


def dataset_of(prototypes, counts, seed=0, size=16):
    """Images of classes that have so many prototypes each: smooth, so that crops of one are near each other."""
    draw = np.random.default_rng(seed)
    coarse = torch.from_numpy(draw.integers(0, 256, (len(counts) * prototypes, 1, 3, 3))).float()
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic", align_corners=True)
    labels = np.repeat(np.arange(len(counts)), counts)
    chosen = labels * prototypes + draw.integers(prototypes, size=len(labels))
    images = InMemoryImages(smooth.clamp(0, 255).to(torch.uint8)[chosen], labels)
    names = tuple(map(str, range(len(counts))))
    return ImageDataset(
        name="smooth", classes=names, train=images, test=images, mean=(128,), std=(64,), pad=1, flip=False
    )


def test_prototypes_of_images_are_found():
    advice = advise(dataset_of(40, [200, 60, 20]))
    assert advice.estimate.prototypes[0] == pytest.approx(40, rel=0.35)
    assert advice.estimate.low[0] <= 40 <= advice.estimate.high[0]
    assert advice.beta == pytest.approx(1 - 1 / 40, abs=0.02)
    assert advice.weights == pytest.approx(class_weights([200, 60, 20], beta=advice.betas))
    assert advice.global_weights == pytest.approx(class_weights([200, 60, 20], beta=advice.beta))


def test_the_radius_is_the_quantile_of_the_distances_between_views():
    dataset = dataset_of(10, [30, 30])
    distances = view_distances(dataset, pixel_features(dataset))
    assert len(distances) == 60
    for quantile in (0.25, 0.5):
        assert advise(dataset, quantile=quantile).estimate.radius == pytest.approx(np.quantile(distances, quantile))


def test_without_augmentation_all_views_are_one():
    dataset = replace(dataset_of(10, [30, 30]), pad=0)
    assert view_distances(dataset, pixel_features(dataset)).max() == 0


def test_principal_components_keep_distances_where_they_are_enough():
    dataset = dataset_of(10, [40, 40])
    pixels = torch.cat([batch.images for batch in evaluation_loader(dataset, 100, images=dataset.train).epoch(0)])
    features = pixel_features(dataset)(pixels)
    assert features.shape == (80, 64)
    assert torch.cdist(features, features) == pytest.approx(torch.cdist(pixels.flatten(1), pixels.flatten(1)), abs=0.05)


def test_the_network_of_a_run_compares_the_images(finished):
    dataset = open_dataset("digits")
    advice = advise(dataset, finished)
    assert advice.features == f"features of {finished.path.name}"
    radius = np.quantile(view_distances(dataset, network_features(finished)), 0.5)
    assert advice.estimate.radius == pytest.approx(radius)
    assert advice.estimate.counts.sum() == len(dataset.train)


def test_a_network_of_other_images_is_refused(finished):
    with pytest.raises(ConfigError, match=r"was trained on 1 × 8 × 8, but smooth has 1 × 16 × 16"):
        advise(dataset_of(3, [5, 5]), finished)


def test_image_files_are_compared_as_thumbnails(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("cat", "owl"):
        coarse = [Image.fromarray(draw.integers(0, 256, (3, 3, 3), dtype=np.uint8)) for _ in range(4)]
        for number in range(12):
            path = tmp_path / name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            coarse[number % 4].resize((60, 50), Image.Resampling.BICUBIC).save(path)
    advice = advise(open_dataset(str(tmp_path)))
    assert advice.classes == ("cat", "owl")
    assert (advice.estimate.alone == 0).all()
    assert (advice.estimate.volume < 5).all()


def test_the_same_seed_gives_the_same_advice_and_leaves_the_generator_alone():
    dataset = dataset_of(10, [40, 20])
    state = torch.get_rng_state()
    first, second = advise(dataset), advise(dataset)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.estimate.radius == second.estimate.radius
    assert first.betas == second.betas
