"""Several labels per sample: which digits are on a strip of three?"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedLoss, SigmoidCrossEntropy, class_counts, init_classifier_bias_, long_tailed_counts


def strips(digits, labels, number, frequencies, seed):
    """Strips of three real digits, and a multi-hot matrix of those that are on them."""
    random = np.random.default_rng(seed)
    drawn = random.choice(10, size=(number, 3), p=frequencies / frequencies.sum())
    chosen = [[random.choice(np.flatnonzero(labels == digit)) for digit in strip] for strip in drawn]
    images = digits[chosen].swapaxes(1, 2).reshape(number, 1, 8, 24) / 16
    multi_hot = (drawn[:, :, None] == np.arange(10)).any(1)
    return TensorDataset(torch.tensor(images, dtype=torch.float32), torch.tensor(multi_hot, dtype=torch.float32))


def train(dataset, criterion):
    """A small convolutional network: logits (N, C) for a multi-hot target (N, C)."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 6), nn.BatchNorm2d(48), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    multi_hot = dataset.tensors[1]
    init_classifier_bias_(model[-1], prior=class_counts(multi_hot) / len(multi_hot))  # start at each class's frequency
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        for images, targets in DataLoader(dataset, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            criterion(model(images), targets).backward()
            optimizer.step()
    return model.eval()


def criteria_for(multi_hot):
    """A sample weighs the mean of its classes."""
    counts = class_counts(multi_hot)
    return {
        "plain": SigmoidCrossEntropy(),
        "class-balanced": ClassBalancedLoss(counts, loss="sigmoid", beta=0.999, normalize="samples"),
    }


def main():
    """Train with both criteria; return for each the recall of all classes and of the three rarest."""
    images, labels = load_digits(return_X_y=True)
    digits = images.reshape(-1, 8, 8)
    ours, others = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    train_set = strips(digits[ours], labels[ours], 600, long_tailed_counts(1000, 10, imbalance=20), seed=0)
    images, targets = strips(digits[others], labels[others], 500, np.ones(10), seed=1).tensors

    results = {}
    for name, criterion in criteria_for(train_set.tensors[1]).items():
        found = train(train_set, criterion)(images) > 0  # a probability above 1/2
        recall = recall_score(targets, found, average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} recall of all classes {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
