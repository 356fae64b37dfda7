"""The figure of prototypes: every class is on it, and what has no end has none."""

import numpy as np
import pytest

from longtail.lab.advice import Advice
from longtail.lab.report import save
from longtail.lab.report.figures import prototypes_per_class
from longtail.prototypes import estimate_prototypes
from tests.lab.report.test_figures import rows_of


def advice_of(counts, prototypes, seed=0):
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.random.default_rng(seed).integers(prototypes, size=(len(labels), 1))
    estimate = estimate_prototypes(features, labels, 0.5, len(counts))
    names = tuple(f"class {number}" for number in range(len(counts)))
    return Advice(name="drawn", classes=names, features="places", quantile=0.5, estimate=estimate)


@pytest.mark.parametrize("classes", [4, 60])
def test_every_class_has_its_estimates(classes):
    advice = advice_of([300, 40, 2, 1] * (classes // 4), 100)
    rows = rows_of(prototypes_per_class(advice), "name", "rank")
    own = [row for row in rows if "low" in row]
    assert len(own) == len(rows) / 2 == classes
    assert [row["images"] for row in own] == sorted(advice.estimate.counts.tolist(), reverse=True)
    for row in own:
        place = advice.classes.index(row["class"])
        assert row["low"] == advice.estimate.low[place]
        assert np.isfinite(row["high"])
        assert ("N" in row) == np.isfinite(advice.estimate.prototypes[place])
    drawn = [row["N"] for row in rows if "low" not in row]
    assert sorted(drawn) == sorted(advice.estimate.shrunken.tolist())


@pytest.mark.parametrize("prototypes", [1, 10**9])
def test_it_can_be_drawn_where_nothing_is_known(tmp_path, prototypes):
    (path,) = save(prototypes_per_class(advice_of([30, 5], prototypes)), tmp_path, "classes", ["svg"])
    assert "Prototypes of each class" in path.read_text()
