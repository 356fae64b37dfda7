"""XGBoost and LightGBM: ``sample_weight``."""

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from xgboost import XGBClassifier

from longtail import class_counts, class_weights, long_tailed_counts, sample_weights


def long_tailed_digits():
    """Real digits, 120 images of the first class and 6 of the last; 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    counts = long_tailed_counts(120, 10, imbalance=20)
    keep = np.concatenate([train[labels[train] == digit][:n] for digit, n in enumerate(counts)])
    return images[keep], labels[keep], images[test], labels[test]


def fit(images, labels):
    """Both libraries, plain and class-balanced."""
    # Σ nᵢ αᵢ = Σ nᵢ: an average sample weighs 1, so that min_child_weight and lambda keep their meaning.
    weights = class_weights(class_counts(labels), beta=0.999, normalize="samples")
    per_sample = sample_weights(labels, weights)

    trees = {"n_estimators": 40, "max_depth": 3}
    yield "XGBoost, plain", XGBClassifier(**trees).fit(images, labels)
    yield "XGBoost, class-balanced", XGBClassifier(**trees).fit(images, labels, sample_weight=per_sample)

    trees = {"n_estimators": 40, "num_leaves": 7, "min_child_samples": 1, "verbose": -1}
    yield "LightGBM, plain", LGBMClassifier(**trees).fit(images, labels)
    yield "LightGBM, class-balanced", LGBMClassifier(**trees).fit(images, labels, sample_weight=per_sample)


def main():
    """Fit; return for each model the recall of all classes and of the three rarest."""
    images, labels, test_images, test_labels = long_tailed_digits()
    results = {}
    for name, model in fit(images, labels):
        recall = recall_score(test_labels, model.predict(test_images), average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:24} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
