"""Weight decay where the authors have it."""

from dataclasses import replace

import pytest
from torch import nn

from longtail.lab.config import LossConfig, RunConfig
from longtail.lab.models import build_model
from longtail.lab.training.build import build_optimizer


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "focal"])
@pytest.mark.parametrize("decay_norms", [True, False])
def test_what_is_decayed_follows_the_recipe_and_the_loss(loss, decay_norms):
    config = RunConfig(loss=LossConfig(loss=loss))
    config = replace(config, optimizer=replace(config.optimizer, decay_norms=decay_norms, weight_decay=0.25))
    network = build_model("resnet8", 10)
    groups = build_optimizer(config, network).param_groups
    decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))
    for module in network.modules():
        for name, weight in module.named_parameters(recurse=False):
            free = isinstance(module, nn.BatchNorm2d) and not decay_norms
            if module is network.fc and name == "bias":
                free = loss != "softmax" or not decay_norms
            assert decay[id(weight)] == (0 if free else 0.25)
