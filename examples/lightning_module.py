"""Lightning: the criterion is a part of the module."""

import logging
import warnings

import numpy as np
import torch
from lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedLoss, class_counts, long_tailed_counts

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`")  # between Lightning and PyTorch
warnings.filterwarnings("ignore", ".*does not have many workers")  # which so small a set does not need


class LongTailClassifier(LightningModule):
    """A small network under the class-balanced softmax loss; β = 0 is the plain one."""

    def __init__(self, counts, beta=0.999):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        # Its class weights are a buffer: they follow the module to its device, and into its checkpoints.
        self.criterion = ClassBalancedLoss(counts, loss="softmax", beta=beta)

    def training_step(self, batch, batch_index):
        """Loss of a batch."""
        images, labels = batch
        return self.criterion(self.network(images), labels)

    def configure_optimizers(self):
        """As without it."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

    def predict_step(self, batch, batch_index):
        """Classes of a batch."""
        return self.network(batch[0]).argmax(1)


def long_tailed_digits():
    """Real digits, 120 images of the first class and 6 of the last; 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train, test = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    counts = long_tailed_counts(120, 10, imbalance=20)
    keep = np.concatenate([train[labels[train] == digit][:n] for digit, n in enumerate(counts)])
    return TensorDataset(images[keep], labels[keep]), TensorDataset(images[test], labels[test])


def main():
    """Train with both; return for each the recall of all classes and of the three rarest."""
    dataset, test_set = long_tailed_digits()
    counts = class_counts(dataset).tolist()  # of the whole training set
    results = {}
    for name, beta in {"plain": 0.0, "class-balanced": 0.999}.items():
        seed_everything(0, verbose=False)
        model = LongTailClassifier(counts, beta)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(max_epochs=20, logger=False, enable_checkpointing=False, log_every_n_steps=1, **quiet)
        trainer.fit(model, DataLoader(dataset, batch_size=64, shuffle=True))
        predicted = torch.cat(trainer.predict(model, DataLoader(test_set, batch_size=500)))
        recall = recall_score(test_set.tensors[1], predicted, average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
