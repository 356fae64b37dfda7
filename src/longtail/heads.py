"""The last layer under sigmoid losses: bias from a class prior, and no weight decay on it (paper, section 5.2)."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from longtail._checks import check_non_negative

__all__ = ["init_classifier_bias_", "param_groups"]

Head = TypeVar("Head", bound=nn.Module)


def init_classifier_bias_(head: Head, prior: float | Tensor | None = None) -> Head:
    r"""Set the bias of the last layer so that every class starts at its prior probability.

    .. math:: b = -\log\frac{1-\pi}{\pi}

    With :math:`b = 0` each of C sigmoids starts at 1/2 and the first loss is about :math:`C \log 2`; at
    :math:`\pi = 1/C` it is about :math:`1 + \log C`. Use it with sigmoid and focal losses, not with softmax.

    Args:
        head: the last layer, ``nn.Linear`` or a convolution; anything with a ``bias`` of shape (C,).
        prior: π in (0, 1), a number or one per class; 1/C without it.

    Returns:
        ``head``, changed in place.

    Example:
        >>> head = init_classifier_bias_(nn.Linear(64, 10))
        >>> head.bias.sigmoid()[0].item()
        0.1...
    """
    bias = _bias_of(head)
    classes = bias.numel()
    if prior is None:
        if classes == 1:
            raise ValueError("prior is needed for a head with one output: 1/C would be 1")
        prior = 1 / classes
    pi = torch.as_tensor(prior, dtype=torch.float64).detach().cpu()
    if pi.dim() and pi.shape != bias.shape:
        raise ValueError(f"prior has shape {tuple(pi.shape)} but the head's bias has shape {tuple(bias.shape)}")
    if not bool(((pi > 0) & (pi < 1)).all()):
        raise ValueError(f"prior must be in (0, 1), got {pi[~((pi > 0) & (pi < 1))].flatten()[0].item()}")
    with torch.no_grad():
        bias.copy_(torch.log(pi) - torch.log1p(-pi))
    return head


def param_groups(model: nn.Module, weight_decay: float, head: nn.Module | str) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, without weight decay on the bias of the last layer.

    Args:
        model: the whole network.
        weight_decay: decay of everything else.
        head: the last layer, or its name in ``model`` (``"fc"``).

    Returns:
        Two groups: all other trainable parameters with ``weight_decay``, and the head's bias with 0.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> groups = param_groups(model, weight_decay=2e-4, head="2")
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(3, 0.0002), (1, 0.0)]
        >>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    """
    check_non_negative("weight_decay", weight_decay)
    modules = dict(model.named_modules())
    if isinstance(head, str) and head not in modules:
        raise ValueError(f"head {head!r} is not a module of {type(model).__name__}")
    bias = _bias_of(modules[head] if isinstance(head, str) else head)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trainable if parameter is not bias]
    if len(decayed) == len(trainable) and bias.requires_grad:
        raise ValueError("the bias of head is not among the parameters of model")
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": [bias] if bias.requires_grad else [], "weight_decay": 0.0},
    ]


def _bias_of(head: nn.Module) -> nn.Parameter:
    bias = getattr(head, "bias", None)
    if not isinstance(bias, nn.Parameter) or bias.dim() != 1:
        raise ValueError(f"head must have a bias of shape (C,), {type(head).__name__} has none")
    return bias
