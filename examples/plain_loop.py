"""A plain PyTorch loop: only the criterion changes."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedLoss, long_tailed_counts

device = "cuda" if torch.cuda.is_available() else "cpu"


def long_tailed_digits():
    """Real digits, 120 images of the first class and 6 of the last; 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train, test = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    counts = long_tailed_counts(120, 10, imbalance=20)
    keep = np.concatenate([train[labels[train] == digit][:n] for digit, n in enumerate(counts)])
    return TensorDataset(images[keep], labels[keep]), TensorDataset(images[test], labels[test])


def train(dataset, criterion):
    """The loop as it always was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for _ in range(20):
        for images, labels in DataLoader(dataset, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            criterion(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    return model


def main():
    """Train with both criteria; return for each the recall of all classes and of the three rarest."""
    dataset, test_set = long_tailed_digits()
    criteria = {
        "plain": nn.CrossEntropyLoss(),
        # Counts the labels of the whole training set, once. The weights are a buffer: .to() moves them.
        "class-balanced": ClassBalancedLoss.from_dataset(dataset, loss="softmax", beta=0.999).to(device),
    }
    results = {}
    images, labels = test_set.tensors
    for name, criterion in criteria.items():
        predicted = train(dataset, criterion)(images.to(device)).argmax(1).cpu()
        recall = recall_score(labels, predicted, average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
