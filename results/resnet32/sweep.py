"""When class weights pay with a larger network: ``longtail sweep results/resnet32/sweep.py``.

Long-tailed CIFAR-10 at imbalance 100, ResNet-32, the paper's recipe shortened to 30 epochs: plain softmax,
class-balanced softmax and focal loss, class-balanced softmax from the first drop of the learning rate on, and balanced
softmax; plain and balanced softmax with a second seed. Then the softmax ones with twice as many epochs.
"""

from dataclasses import replace

from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar

PLAIN = LossConfig()
BALANCED = LossConfig(beta=0.9999)
FOCAL = LossConfig(name="focal", gamma=1.0, beta=0.9999)
LOGIT_ADJUSTED = LossConfig(name="logit_adjusted")


def run(loss: LossConfig, epochs: int) -> RunConfig:
    """With the paper's network."""
    config = cifar(DataConfig(name="cifar10", subset=SubsetOptions(imbalance=100)), loss, epochs)
    return replace(config, model=ModelConfig(name="resnet32"), test_every=5)


def deferred(config: RunConfig) -> RunConfig:
    """With class weights from the first drop of the learning rate on."""
    return replace(config, optimizer=replace(config.optimizer, defer_reweighting=config.optimizer.milestones[0]))


sweep = [
    run(PLAIN, 30),
    run(BALANCED, 30),
    run(FOCAL, 30),
    deferred(run(BALANCED, 30)),
    run(LOGIT_ADJUSTED, 30),
    replace(run(PLAIN, 30), seed=1),
    replace(run(LOGIT_ADJUSTED, 30), seed=1),
    run(PLAIN, 60),
    run(BALANCED, 60),
    deferred(run(BALANCED, 60)),
]
