"""Sigmoid cross-entropy and focal loss: C independent one-against-all classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from longtail._checks import check_loss_option
from longtail._docstrings import with_shared_paragraphs
from longtail.functional._apply import apply_loss
from longtail.functional._blocked import LOG2_E, Buffers, RowLoss, is_own_class

__all__ = [
    "focal_loss",
    "focal_terms",
    "focal_value_and_slope",
    "power",
    "sigmoid_cross_entropy",
]


@with_shared_paragraphs
def sigmoid_cross_entropy(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Sigmoid cross-entropy, summed over classes, with class weights.

    .. math:: L(z, y) = -\alpha_y \sum_{i=1}^{C} \log \operatorname{sigmoid}(z_i^t), \qquad
        z_i^t = z_i \text{ if } i = y, \text{ else } -z_i

    The weight is the sample's: it multiplies all C terms. The sum over classes is not divided by C.

    {shapes}

    Args:
        logits: {sigmoid_logits}
        target: class indices (N) or (N, d1, …), or a target of the logits' shape: multi-hot, or soft in [0, 1].
            With :math:`t_i` the target, term i is
            :math:`-t_i \log \operatorname{sigmoid}(z_i) - (1-t_i) \log \operatorname{sigmoid}(-z_i)`, and the
            sample's weight is the mean weight of its positives, :math:`\sum_i t_i \alpha_i / \sum_i t_i`, and 1 for
            a sample without any: it says nothing of rare or frequent classes, so it keeps the weight of no
            re-weighting.
        class_weight: {class_weight}
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> sigmoid_cross_entropy(logits, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]))
        tensor(2.0938)
        >>> multi_hot = torch.tensor([[1, 1, 0], [0, 0, 0]])
        >>> sigmoid_cross_entropy(logits, multi_hot, torch.tensor([0.2, 0.8, 2.0]), reduction="none")
        tensor([0.5667, 2.9805])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, section 4.2.
    """
    return apply_loss(_SIGMOID, logits, target, class_weight, label_smoothing, ignore_index, reduction)


@with_shared_paragraphs
def focal_loss(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    gamma: float = 0.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Focal loss over sigmoids, summed over classes, with class weights.

    .. math:: L(z, y) = -\alpha_y \sum_{i=1}^{C} (1 - p_i^t)^\gamma \log p_i^t, \qquad
        p_i^t = \operatorname{sigmoid}(z_i^t), \quad z_i^t = z_i \text{ if } i = y, \text{ else } -z_i

    γ = 0 is :func:`sigmoid_cross_entropy`. Value and gradient are finite for every finite logit and every γ ≥ 0.

    {shapes}

    Args:
        logits: {sigmoid_logits}
        target: class indices (N) or (N, d1, …), or a target of the logits' shape, multi-hot or soft: with
            :math:`t_i` the target, term i is :math:`t_i` times the positive term plus :math:`1-t_i` times the
            negative one. Weights as in :func:`sigmoid_cross_entropy`.
        class_weight: {class_weight}
        gamma: γ ≥ 0. The paper takes 0.5 on iNaturalist and ImageNet, and 0.5, 1 or 2 on CIFAR.
        label_smoothing: {label_smoothing}
        ignore_index: {ignore_index}
        reduction: {reduction}

    Returns:
        {returns}

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> focal_loss(logits, torch.tensor([0, 2]), torch.tensor([0.2, 0.8, 2.0]), gamma=2.0)
        tensor(0.5931)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017; Cui et al., Class-Balanced Loss Based on
        Effective Number of Samples, CVPR 2019, section 4.3.
    """
    check_loss_option("gamma", gamma)
    return apply_loss(_Focal(float(gamma)), logits, target, class_weight, label_smoothing, ignore_index, reduction)


def focal_terms(v: Tensor, gamma: float) -> Tensor:
    """sigmoid(v)^γ softplus(v), to be differentiated; -softplus(-v) is log sigmoid(v)."""
    u = F.softplus(v, threshold=_SATURATED)
    return u if gamma == 0 else torch.exp(-gamma * F.softplus(-v, threshold=_SATURATED)) * u


def focal_value_and_slope(v: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The same, with its derivative by v."""
    u, wrong = softplus_and_sigmoid(v)
    if gamma == 0:
        return u, wrong
    modulator = power(wrong, gamma)
    value = modulator * u
    return value, torch.lerp(gamma * value, modulator, wrong)


class _Focal(RowLoss):
    r"""Σ (1-p)^γ · -log p over the classes, p the probability given to what is true of a class.

    With v the logit of what is *not* true (v = -z for the target, z for the rest): -log p = softplus(v),
    1-p = sigmoid(v), and the derivative by v is (1-p)^γ (γ p softplus(v) + 1-p): between γ × the term and (1-p)^γ,
    with 1-p as the weight. No power of γ - 1 and no logarithm of a rounded probability, so there is no trap at p = 1
    for γ < 1 and none at p = 0.
    """

    separable = True
    symmetric = True

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.buffers = 4 if gamma else 2

    def from_indices(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal_terms(torch.where(is_own_class(logits, target), -logits, logits), self.gamma).sum(1)

    def from_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        positives, negatives = focal_terms(-logits, self.gamma), focal_terms(logits, self.gamma)
        return (target * positives + (1 - target) * negatives).sum(1)

    def positives(self, own: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = focal_value_and_slope(-own, self.gamma)
        return value, -slope

    def block(
        self, logits: Tensor, target: Tensor, scale: Tensor, out: Buffers, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        if self.gamma == 0:
            if is_compiling():
                u, wrong = softplus_and_sigmoid(logits)
                return u, wrong * scale
            u = softplus(logits, out[1])
            return u, (torch.sigmoid(logits, out=out[0]).mul_(scale) if gradient else u)
        u, modulator, wrong = self._factors(logits, out)
        terms = u.mul_(modulator)
        if not gradient:
            return terms, terms
        end = terms if self.gamma == 1 else torch.mul(terms, self.gamma, out=out[0])
        return terms, torch.lerp(end, modulator, wrong, out=out[0]).mul_(scale)

    def _factors(self, v: Tensor, out: Buffers) -> tuple[Tensor, Tensor, Tensor]:
        """softplus(v), sigmoid(v)^γ and sigmoid(v), by what is fastest where."""
        if is_compiling():
            u, wrong = softplus_and_sigmoid(v)
            return u, power(wrong, self.gamma), wrong
        u = softplus(v, out[1])
        if self.gamma in (1, 2) or (self.gamma == 0.5 and v.numel() <= _FEW):
            wrong = torch.sigmoid(v, out=out[2])
            return u, power(wrong, self.gamma, out[3]), wrong
        # log(1-p) is z - softplus(z), and PyTorch's exp2 takes less time than its square root and its power.
        modulator = torch.sub(v, u, out=out[3]).mul_(self.gamma * LOG2_E).exp2_()
        return u, modulator, torch.square(modulator, out=out[2]) if self.gamma == 0.5 else torch.sigmoid(v, out=out[2])


# exp(40) + 1 = exp(40) even in float64, so from there on softplus(v) = v to the last bit.
_SATURATED = 40.0
# Up to here the number of operations decides, and not what each of them takes for a number.
_FEW = 4096


def softplus(v: Tensor, out: Tensor | None = None) -> Tensor:
    """log(1 + exp(v)), in a buffer or allocated."""
    if out is None or not v.is_cpu:
        return F.softplus(v, 1.0, _SATURATED, out=out)  # type: ignore[call-arg]
    # PyTorch's softplus takes longer than these operations on a block in the cache, and its exp longer than its exp2.
    if v.amax().item() < _SATURATED:
        return torch.mul(v, LOG2_E, out=out).exp2_().log1p_()
    torch.clamp_max(v, _SATURATED, out=out).mul_(LOG2_E).exp2_().log1p_()
    return torch.maximum(out, v, out=out)


def softplus_and_sigmoid(v: Tensor) -> tuple[Tensor, Tensor]:
    """Both; a compiler is given a form in which they share one exponential."""
    if not is_compiling():
        return softplus(v), torch.sigmoid(v)
    e = torch.exp(-v.abs())
    right = 1 / (1 + e)
    return _log1p(e) + v.clamp_min(0), torch.where(v > 0, right, e * right)


def _log1p(e: Tensor) -> Tensor:
    """log(1 + e) of e in [0, 1], for a compiler to fuse: in float32 it takes half the time of a library's log1p."""
    if e.dtype == torch.float64:
        return torch.log1p(e)
    s = e / (2 + e)  # log(1 + e) = 2 artanh(s) = 2s (1 + s²/3 + s⁴/5 + …), and s² is 1/9 at most
    square = s * s
    series = square * (1 / 13) + 1 / 11
    for odd in (9, 7, 5, 3, 1):
        series = series * square + 1 / odd
    return 2 * s * series


def power(base: Tensor, exponent: float, out: Tensor | None = None) -> Tensor:
    """A power of a number in [0, 1], which may be ``base`` itself, without a power function where that is possible."""
    if exponent == 1:
        return base
    if exponent == 2:
        return torch.mul(base, base, out=out)
    return torch.sqrt(base, out=out) if exponent == 0.5 else torch.pow(base, exponent, out=out)


_SIGMOID = _Focal(0.0)
