"""Table 2 of the paper at its own scale: ``longtail sweep results/table2/sweep.py``.

ResNet-32, 200 epochs, learning rate × 0.01 at 160 and 180, tested every five epochs: plain softmax, the paper's best
class-balanced loss of each data set, and what came after the paper, in groups that are whole statements. Two hours for
each run on one core in float32, a little over one in ``bf16-mixed``, which all but the first group use; losses that are
compared with each other have the same precision.
"""

from dataclasses import replace

from longtail.lab.config import DataConfig, LossConfig, RunConfig
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

PLAIN = LossConfig()
BALANCED_SOFTMAX = LossConfig(name="logit_adjusted")


def focal(gamma: float, beta: float | None = None) -> LossConfig:
    """Focal loss, class-balanced with a β."""
    return LossConfig(name="focal", gamma=gamma, beta=beta)


def sigmoid(beta: float | None = None) -> LossConfig:
    """Sigmoid cross-entropy, class-balanced with a β."""
    return LossConfig(name="sigmoid", beta=beta)


def run(data: str, imbalance: float, loss: LossConfig, seed: int = 0) -> RunConfig:
    """As in the paper, tested every five epochs."""
    config = cifar(DataConfig(name=data, subset=SubsetOptions(imbalance=imbalance)), loss)
    precision = "32-true" if (data, imbalance) == ("cifar10", 100) else "bf16-mixed"
    return replace(config, test_every=5, seed=seed, precision=precision)


CIFAR10 = [
    PLAIN,
    focal(1.0, 0.9999),
    LossConfig(beta=0.9999),
    BALANCED_SOFTMAX,
    LossConfig(beta=0.9999, defer_reweighting=0.8),
]
CIFAR100 = [PLAIN, focal(1.0, 0.9), BALANCED_SOFTMAX]

sweep = [
    *(run("cifar10", 100, loss) for loss in CIFAR10),
    *(run("cifar100", 100, loss) for loss in CIFAR100),
    *(run("cifar10", 50, loss) for loss in (PLAIN, focal(2.0, 0.9999))),
    *(run("cifar10", 10, loss) for loss in (PLAIN, sigmoid(0.9999))),
    *(run("cifar100", 50, loss) for loss in (PLAIN, sigmoid(0.99), sigmoid())),
    *(run("cifar10", 100, loss, seed) for seed in (1, 2) for loss in CIFAR10),
    *(run("cifar100", 100, loss, seed) for seed in (1, 2) for loss in CIFAR100),
]
