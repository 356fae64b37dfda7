"""Another last layer for the network of a finished run: trained anew, or computed from the one that it has."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import nn

from longtail.counts import IntArray
from longtail.heads import adjust_logits
from longtail.lab.config import ConfigError, RunConfig, field_places
from longtail.lab.data import ImageDataset, LongTailedSubset
from longtail.lab.models import CifarResNet, ResNet
from longtail.lab.training.build import build_network
from longtail.lab.training.run_folder import RunFolder

__all__ = ["check_parent", "rebalance_", "take_over"]

FREE = ("sampling", "sampling_beta", "augment", "mixup", "cutmix")
"""What of the data may be other than in the run that a head is retrained for: not which images they are."""


def check_parent(config: RunConfig, runs: Path, dataset: ImageDataset, subset: LongTailedSubset) -> None:
    """Refuse a run whose network cannot be taken over: it is not there, not finished, of other data, or another."""
    head = config.head
    if head.head_of is None:
        return
    folder = RunFolder(runs / head.head_of)
    if not folder.path.exists():
        raise ConfigError(f"{folder.path} does not exist: the run that the network is from must be in the same folder")
    parent = folder.config()
    folder.check_finished()
    for name, place in field_places().items():
        of_data = place[0] in ("data", "model") and name not in FREE
        if place[0] != "head" and (head.is_rebalanced or of_data):
            here, there = (functools.reduce(getattr, place, each) for each in (config, parent))
            if here != there:
                raise ConfigError(f"{name} is {here} but {there} in {folder.path}, whose network is taken over")
    folder.check_data(dataset, subset)
    take_over(build_network(config, dataset), config, runs, dataset.counts)


def take_over(network: CifarResNet | ResNet, config: RunConfig, runs: Path, counts: IntArray) -> None:
    """Give the network the weights of the run that it is to have another last layer for, if it is of one."""
    head = config.head
    if head.head_of is None:
        return
    folder = RunFolder(runs / head.head_of)
    if head.head_method == "retrain":
        folder.load_weights(network, without="fc")
        network.requires_grad_(False)
        network.fc.requires_grad_(True)
        return
    folder.load_weights(network)
    assert head.head_method is not None
    assert head.head_tau is not None
    rebalance_(network.fc, head.head_method, head.head_tau, counts)


@torch.no_grad()
def rebalance_(layer: nn.Module, method: str, tau: float, counts: IntArray) -> None:
    r"""Change a trained last layer so that rare classes are named more often.

    .. math:: w_j \leftarrow w_j / \lVert w_j \rVert^\tau, \; b_j \leftarrow 0 \;(\text{tau\_norm}), \qquad
        b_j \leftarrow b_j - \tau \log \pi_j, \; \pi_j = n_j / \textstyle\sum_k n_k \;(\text{logit\_adjustment})

    Args:
        layer: the last layer, changed in place.
        method: ``"tau_norm"`` or ``"logit_adjustment"``.
        tau: τ ≥ 0.
        counts: training images of each class.

    Example:
        >>> import numpy as np
        >>> layer = nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> rebalance_(layer, "tau_norm", 1.0, np.array([900, 100]))
        >>> layer.weight.data, layer.bias.data
        (tensor([[0.6000, 0.8000],
                [0.0000, 1.0000]]), tensor([0., 0.]))

    Reference:
        Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020, section 4;
        Menon et al., *Long-Tail Learning via Logit Adjustment*, ICLR 2021.
    """
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ConfigError(
            f"{method} needs a last layer with a bias and weights of any length, not {type(layer).__name__}"
        )
    if method == "tau_norm":
        weights = layer.weight.double()
        layer.weight.copy_(weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-12) ** tau)
        layer.bias.zero_()
        return
    layer.bias.copy_(adjust_logits(layer.bias.double(), counts, tau))
