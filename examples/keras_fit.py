"""Keras: the ``class_weight`` of ``fit``. Here on PyTorch; with TensorFlow or JAX it is the same."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

from longtail import class_counts, class_weight_dict, class_weights, long_tailed_counts


def long_tailed_digits():
    """Real digits, 120 images of the first class and 6 of the last; 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    counts = long_tailed_counts(120, 10, imbalance=20)
    keep = np.concatenate([train[labels[train] == digit][:n] for digit, n in enumerate(counts)])
    return images[keep] / 16, labels[keep], images[test] / 16, labels[test]


def train(images, labels, class_weight=None):
    """A small network."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(images, labels, class_weight=class_weight, batch_size=64, epochs=20, verbose=0)
    return model


def main():
    """Train with both; return for each the recall of all classes and of the three rarest."""
    images, labels, test_images, test_labels = long_tailed_digits()
    weights = class_weights(class_counts(labels), beta=0.999)
    results = {}
    for name, class_weight in {"plain": None, "class-balanced": class_weight_dict(weights)}.items():
        model = train(images, labels, class_weight)
        predicted = model.predict(test_images, verbose=0).argmax(1)
        recall = recall_score(test_labels, predicted, average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
