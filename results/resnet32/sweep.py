"""When class weights help with a larger network: ``longtail sweep results/resnet32/sweep.py``.

Long-tailed CIFAR-10 at imbalance 100, ResNet-32, the paper's recipe shortened to 30 epochs: plain softmax,
class-balanced softmax and focal loss, class-balanced softmax with deferred weights, and balanced softmax; plain and
balanced softmax with a second seed. Then the softmax ones with twice as many epochs.
"""

from dataclasses import replace

from longtail.lab.config import DataConfig, LossConfig, RunConfig
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

PLAIN = LossConfig()
BALANCED = LossConfig(beta=0.9999)
DEFERRED = LossConfig(beta=0.9999, defer_reweighting=0.8)
FOCAL = LossConfig(name="focal", gamma=1.0, beta=0.9999)
BALANCED_SOFTMAX = LossConfig(name="logit_adjusted")


def run(loss: LossConfig, epochs: int, seed: int = 0) -> RunConfig:
    """With the paper's network."""
    config = cifar(DataConfig(name="cifar10", subset=SubsetOptions(imbalance=100)), loss, epochs)
    return replace(config, test_every=5, seed=seed)


sweep = [
    *(run(loss, 30) for loss in (PLAIN, BALANCED, FOCAL, DEFERRED, BALANCED_SOFTMAX)),
    *(run(loss, 30, seed=1) for loss in (PLAIN, BALANCED_SOFTMAX)),
    *(run(loss, 60) for loss in (PLAIN, BALANCED, DEFERRED)),
]
