"""Segmentation: a class for each pixel, most of them background, and pixels that do not count."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedLoss, class_counts, long_tailed_counts

IGNORED = 255  # what many data sets write at the borders of objects


def pages(digits, labels, number, frequencies, seed):
    """Pages of 3 × 3 real digits, and their masks: 0 is background, 1 … 10 a digit's ink, 255 the grey between."""
    random = np.random.default_rng(seed)
    drawn = random.choice(10, size=(number, 9), p=frequencies / frequencies.sum())
    chosen = [[random.choice(np.flatnonzero(labels == digit)) for digit in page] for page in drawn]
    ink = digits[chosen].reshape(number, 3, 3, 8, 8).swapaxes(2, 3).reshape(number, 24, 24)
    classes = (drawn + 1).reshape(number, 3, 3).repeat(8, axis=1).repeat(8, axis=2)
    masks = np.where(ink >= 8, classes, np.where(ink > 2, IGNORED, 0))
    return TensorDataset(torch.tensor(ink / 16, dtype=torch.float32)[:, None], torch.tensor(masks))


def train(dataset, criterion):
    """A small fully convolutional network: logits (N, C, H, W) for masks (N, H, W)."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU()]
    layers += [nn.Conv2d(32, 48, 5, padding=4, dilation=2), nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 11, 1)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(6):
        for images, masks in DataLoader(dataset, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            criterion(model(images), masks).backward()
            optimizer.step()
    return model.eval()


def criteria_for(masks):
    """Count pixels, without those that do not count."""
    counts = class_counts(masks[masks != IGNORED], num_classes=11)
    return {
        "plain": nn.CrossEntropyLoss(ignore_index=IGNORED),
        "class-balanced": ClassBalancedLoss(counts, loss="softmax", beta=0.9999, ignore_index=IGNORED),
    }


def main():
    """Train with both criteria; return for each the recall of all classes and of the three rarest, in pixels."""
    images, labels = load_digits(return_X_y=True)
    digits = images.reshape(-1, 8, 8)
    ours, others = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    train_set = pages(digits[ours], labels[ours], 160, long_tailed_counts(1000, 10, imbalance=50), seed=0)
    images, masks = pages(digits[others], labels[others], 100, np.ones(10), seed=1).tensors
    valid = masks != IGNORED

    results = {}
    for name, criterion in criteria_for(train_set.tensors[1]).items():
        predicted = train(train_set, criterion)(images).argmax(1)
        recall = recall_score(masks[valid], predicted[valid], average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
