"""scikit-learn: ``class_weight`` of an estimator, ``sample_weight`` where a pipeline is in between."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from longtail import class_counts, class_weight_dict, class_weights, long_tailed_counts, sample_weights


def long_tailed_digits():
    """Real digits, 120 images of the first class and 6 of the last; 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    counts = long_tailed_counts(120, 10, imbalance=20)
    keep = np.concatenate([train[labels[train] == digit][:n] for digit, n in enumerate(counts)])
    return images[keep] / 16, labels[keep], images[test] / 16, labels[test]


def fit(images, labels):
    """Two estimators, each plain and class-balanced."""
    # Σ nᵢ αᵢ = Σ nᵢ: an average sample weighs 1, so that C keeps its meaning.
    weights = class_weights(class_counts(labels), beta=0.999, normalize="samples")
    yield "logistic regression, plain", LogisticRegression().fit(images, labels)
    model = LogisticRegression(class_weight=class_weight_dict(weights))
    yield "logistic regression, class-balanced", model.fit(images, labels)

    yield "support vectors, plain", make_pipeline(StandardScaler(), SVC()).fit(images, labels)
    model = make_pipeline(StandardScaler(), SVC())
    per_sample = sample_weights(labels, weights)
    yield "support vectors, class-balanced", model.fit(images, labels, svc__sample_weight=per_sample)


def main():
    """Fit; return for each model the recall of all classes and of the three rarest."""
    images, labels, test_images, test_labels = long_tailed_digits()
    results = {}
    for name, model in fit(images, labels):
        recall = recall_score(test_labels, model.predict(test_images), average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:35} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
