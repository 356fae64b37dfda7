"""A run beside a plain loop of PyTorch: the same weights and the same error, by code that shares none of the loop's."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from longtail import class_weights, functional
from longtail.lab.config import LossConfig, RunOptions, with_fields
from longtail.lab.data import SubsetOptions, open_dataset, training_loader
from longtail.lab.training import RunFolder, loop, train
from tests.lab.training.runs import small_config

SEED, EPOCHS, BATCH, BETA, GAMMA = 3, 3, 64, 0.99, 1.0
RATE, WARMUP, MILESTONE, DROP, DECAY, MOMENTUM = 0.5, 0.75, 1.5, 0.5, 1e-2, 0.8


def rate_at(now):
    """Half of it: it is meant for batches of 128."""
    return RATE / 2 * (now / WARMUP if now < WARMUP else 1.0 if now < MILESTONE else DROP)


class Smooth(nn.Module):
    """With a batch norm, and without a kink: at a ReLU, rounding errors can become large ones."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 6 * 6, 10)

    def forward(self, images):
        return self.fc(self.bn1(self.conv1(images)).tanh().flatten(1))


def plain_loop(loss, deferred, nesterov, mixup):
    dataset, _ = SubsetOptions(imbalance=20).choose(open_dataset("digits"))
    torch.manual_seed(SEED)
    network = Smooth()
    alone = [network.fc.bias] if loss == "focal" else []
    others = [weight for weight in network.parameters() if not any(weight is each for each in alone)]
    groups = [{"params": others, "weight_decay": DECAY}, {"params": alone, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, nesterov=nesterov)
    balanced = torch.tensor(class_weights(dataset.counts, beta=BETA), dtype=torch.float32)
    loader = training_loader(dataset, BATCH, seed=SEED, mixup=mixup)
    losses, rate = [], 0.0
    for epoch in range(EPOCHS):
        losses.append(0.0)
        for step, (images, labels, count) in enumerate(loader.epoch(epoch)):
            now = epoch + step / len(loader)
            rate = rate_at(now)
            for group in optimizer.param_groups:
                group["lr"] = rate
            weight = None if deferred is not None and now < deferred else balanced
            logits = network(images)
            if loss == "focal":
                value = functional.focal_loss(logits, labels, weight, gamma=GAMMA)
            else:
                value = functional.softmax_cross_entropy(logits, labels, weight)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses[-1] += value.item() * count / len(dataset.train)
    network.eval()
    pixels = (dataset.test.images.float() - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    with torch.no_grad():
        wrong = network(pixels).argmax(dim=1) != dataset.test.labels
    return network.state_dict(), losses, rate, 100 * wrong.double().mean().item()


@pytest.mark.parametrize(
    ("loss", "deferred", "nesterov", "mixup"),
    [("focal", None, True, 0.0), ("softmax", 1.25, False, 0.0), ("softmax", None, False, 0.5)],
)
def test_a_run_is_what_a_plain_loop_does(tmp_path, monkeypatch, loss, deferred, nesterov, mixup):
    monkeypatch.setattr(loop, "build_network", lambda config, dataset: Smooth())
    config = small_config(
        EPOCHS,
        seed=SEED,
        loss=LossConfig(
            name=loss,
            beta=BETA,
            gamma=GAMMA if loss == "focal" else None,
            defer_reweighting=None if deferred is None else deferred / EPOCHS,
        ),
        batch_size=BATCH,
        lr=RATE,
        warmup_epochs=WARMUP,
        milestones=(MILESTONE,),
        lr_decay=DROP,
        weight_decay=DECAY,
        momentum=MOMENTUM,
        nesterov=nesterov,
    )
    folder = RunFolder(train(with_fields(config, {"mixup": mixup}), RunOptions(runs=tmp_path)))
    weights, losses, rate, error = plain_loop(loss, deferred, nesterov, mixup)
    lines = folder.metrics()
    assert [line["train_loss"] for line in lines] == pytest.approx(losses, rel=1e-4)
    assert lines[-1]["lr"] == pytest.approx(rate)
    torch.testing.assert_close(load_file(folder.model_file), weights, rtol=1e-4, atol=1e-5)
    assert lines[-1]["error"] == pytest.approx(error)
