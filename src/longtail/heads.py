"""The last layer: its bias under sigmoid losses (paper, section 5.2), cosines for margins, logits without the prior."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail._checks import check_loss_option, check_non_negative, check_positive_integer
from longtail.counts import to_numpy, to_tensor
from longtail.functional._apply import columns
from longtail.functional._blocked import compute_dtype
from longtail.functional._counts import counts_beside, log_prior

__all__ = ["NormedLinear", "adjust_logits", "init_classifier_bias_", "param_groups"]

Head = TypeVar("Head", bound=nn.Module)


def init_classifier_bias_(head: Head, prior: float | Tensor | None = None) -> Head:
    r"""Set the bias of the last layer so that every class starts at its prior probability.

    .. math:: b = -\log\frac{1-\pi}{\pi}

    With :math:`b = 0` each of C sigmoids starts at 1/2 and the first loss is about :math:`C \log 2`; at
    :math:`\pi = 1/C` it is about :math:`1 + \log C`. Use it with sigmoid, focal and asymmetric losses, not
    with those over a softmax.

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
    if to_numpy(prior).dtype.kind not in "biuf":
        raise TypeError(f"prior must be a number or one per class, got {prior!r}")
    pi = to_tensor(prior).detach().cpu().double()
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
        Two groups: all other trainable parameters with ``weight_decay``, and the head's bias with 0. A head built
        without a bias, such as :class:`NormedLinear`, leaves the second one empty.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> groups = param_groups(model, weight_decay=2e-4, head="2")
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(3, 0.0002), (1, 0.0)]
        >>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {model!r}")
    check_non_negative("weight_decay", weight_decay)
    modules = dict(model.named_modules())
    if isinstance(head, str) and head not in modules:
        raise ValueError(f"head {head!r} is not a module of {type(model).__name__}")
    layer = modules[head] if isinstance(head, str) else head
    if not isinstance(layer, nn.Module):
        raise TypeError(f"head must be a module or its name, got {head!r}")
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if getattr(layer, "bias", layer) is None:
        return [{"params": trainable, "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    bias = _bias_of(layer)
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


class NormedLinear(nn.Linear):
    r"""Linear classifier over cosines: what margins, such as those of LDAM, are measured in.

    .. math:: z_i = s \, \frac{w_i^\top x}{\lVert w_i \rVert \, \lVert x \rVert}

    It has no bias. The length of a feature says nothing of its class, nor does that of a class's weights, which on
    long-tailed data grows with the number of samples.

    Shapes: features (…, in_features); logits (…, out_features), in [-s, s].

    Args:
        in_features: length of the features.
        out_features: C.
        scale: s > 0. 1 for :func:`longtail.functional.ldam_loss`, which scales by itself.
        device, dtype: of the weights, as in ``nn.Linear``.

    Example:
        >>> head = NormedLinear(64, 10)
        >>> cosines = head(1000 * torch.randn(8, 64))
        >>> cosines.shape, bool(cosines.abs().max() <= 1)
        (torch.Size([8, 10]), True)

    Reference:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_loss_option("scale", scale)
        check_positive_integer("in_features", in_features)
        check_positive_integer("out_features", out_features)
        super().__init__(in_features, out_features, bias=False, device=device, dtype=dtype)
        self.scale = scale

    def reset_parameters(self) -> None:
        """Draw new directions of length 1."""
        with torch.no_grad():
            self.weight.copy_(F.normalize(torch.randn_like(self.weight), dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Logits of features."""
        # In float32: the length of a float16 vector may be more than float16 holds.
        dtype = compute_dtype(features.dtype)
        directions = F.normalize(features.to(dtype), dim=-1).to(features.dtype)
        classes = F.normalize(self.weight.to(dtype), dim=1).to(self.weight.dtype)
        return self.scale * F.linear(directions, classes)

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        return f"in_features={self.in_features}, out_features={self.out_features}, scale={self.scale:g}"


def adjust_logits(logits: Any, counts: Any, tau: float = 1.0) -> Any:
    r"""Logits of a trained softmax classifier without the prior of its training set.

    .. math:: z_i - \tau \log \pi_i, \qquad \pi_i = \frac{n_i}{\sum_k n_k}

    A classifier that was trained on long-tailed data and is used on balanced data gives rare classes too little: this
    is what it should have said, with no training. Log-probabilities of any classifier will do as well. For a network
    trained with :func:`longtail.functional.logit_adjusted_cross_entropy` it would correct twice.

    Args:
        logits: shape (N, C), (N, C, d1, …) or (C,).
        counts: samples per class in the training set, shape (C,).
        tau: τ ≥ 0, best chosen on validation images; 0 changes nothing.

    Returns:
        Adjusted logits of the same shape and dtype: a tensor if ``logits`` is one, else NumPy.

    Example:
        >>> adjust_logits(torch.tensor([[1.0, 0.0]]), counts=[90, 10])
        tensor([[1.1054, 2.3026]])

    Reference:
        Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021.
    """
    check_loss_option("tau", tau)
    scores = to_tensor(logits)
    if not scores.is_floating_point():
        raise TypeError(f"logits must be floating point, got {scores.dtype}")
    if not scores.dim():
        raise ValueError("logits must have shape (N, C), (N, C, d1, …) or (C,), got a scalar")
    shift = tau * log_prior(counts_beside(scores, counts))
    adjusted = (scores - columns(shift, scores)).to(scores.dtype)
    return adjusted if isinstance(logits, Tensor) else adjusted.numpy()
