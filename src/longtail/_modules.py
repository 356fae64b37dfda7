"""The losses as modules: weights are buffers, forward is one call into :mod:`longtail.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from longtail import functional
from longtail._checks import check_choice, check_in_unit_interval, check_integer, check_loss_option
from longtail.counts import like, to_numpy, to_tensor
from longtail.functional._apply import REDUCTIONS
from longtail.functional._blocked import compute_dtype
from longtail.functional._counts import present_counts

__all__ = [
    "AsymmetricLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedCrossEntropy",
    "Loss",
    "LossFunction",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SoftmaxFocalLoss",
    "as_buffer",
]

LossFunction = Callable[..., Tensor]


class Loss(nn.Module):
    """What the modules share: class weights and counts in buffers that ``.to()`` moves, and options, checked once."""

    class_weight: Tensor | None
    counts: Tensor | None

    def __init__(
        self,
        function: LossFunction,
        class_weight: Any,
        label_smoothing: float,
        ignore_index: int,
        reduction: str,
        counts: Any = None,
        **own_options: float,
    ) -> None:
        super().__init__()
        for name, value in own_options.items():
            check_loss_option(name, value)
        check_in_unit_interval("label_smoothing", label_smoothing)
        check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("class_weight", None if class_weight is None else as_buffer(class_weight))
        self.register_buffer("counts", None if counts is None else _counts_buffer(counts))
        self.function = function
        self.label_smoothing = label_smoothing
        check_integer("ignore_index", ignore_index)
        self.ignore_index = int(ignore_index)
        self.reduction = reduction
        for name, value in own_options.items():
            setattr(self, name, value)
        self._option_names = (*own_options, "label_smoothing", "ignore_index", "reduction")

    def _options(self) -> dict[str, Any]:
        # Read anew in every call, so that `criterion.reduction = "sum"` does what it says, as with PyTorch's losses.
        return {name: getattr(self, name) for name in self._option_names}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        counts = self.counts
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if counts is not None and self.counts is not None and not counts.is_meta:
            # ``.half()`` moves the loss, but leaves the counts: float16 ends at 65,504.
            self.counts = counts.to(self.counts.device)
        return self

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``logits`` (N, C, …) for ``target``, as the function of the same name does."""
        counts = {} if self.counts is None else {"counts": self.counts}
        return self.function(logits, target, self.class_weight, **counts, **self._options())

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        per_class = self.class_weight if self.counts is None else self.counts
        classes = {} if per_class is None else {"num_classes": per_class.numel()}
        return ", ".join(f"{name}={value!r}" for name, value in (classes | self._options()).items())


class SoftmaxCrossEntropy(Loss):
    r"""Module over :func:`longtail.functional.softmax_cross_entropy`.

    .. math:: L(z, y) = -\alpha_y \log \frac{\exp z_y}{\sum_j \exp z_j}

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = SoftmaxCrossEntropy()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1698)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(functional.softmax_cross_entropy, class_weight, label_smoothing, ignore_index, reduction)


class SigmoidCrossEntropy(Loss):
    r"""Module over :func:`longtail.functional.sigmoid_cross_entropy`.

    .. math:: L(z, y) = -\alpha_y \sum_{i=1}^{C} \log \operatorname{sigmoid}(z_i^t)

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = SigmoidCrossEntropy()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(1.1333)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(functional.sigmoid_cross_entropy, class_weight, label_smoothing, ignore_index, reduction)


class FocalLoss(Loss):
    r"""Module over :func:`longtail.functional.focal_loss`.

    .. math:: L(z, y) = -\alpha_y \sum_{i=1}^{C} (1 - p_i^t)^\gamma \log p_i^t

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        gamma: γ ≥ 0.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = FocalLoss(gamma=2.0)
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1977)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        gamma: float = 0.5,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(functional.focal_loss, class_weight, label_smoothing, ignore_index, reduction, gamma=gamma)


class SoftmaxFocalLoss(Loss):
    r"""Module over :func:`longtail.functional.softmax_focal_loss`.

    .. math:: L(z, y) = -\alpha_y (1 - p_y)^\gamma \log p_y, \qquad p = \operatorname{softmax}(z)

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        gamma: γ ≥ 0.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = SoftmaxFocalLoss(gamma=2.0)
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.0041)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        gamma: float = 0.5,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        function = functional.softmax_focal_loss
        super().__init__(function, class_weight, label_smoothing, ignore_index, reduction, gamma=gamma)


class LogitAdjustedCrossEntropy(Loss):
    r"""Module over :func:`longtail.functional.logit_adjusted_cross_entropy`; τ = 1 is balanced softmax.

    .. math:: L(z, y) = -\alpha_y \log \frac{\exp(z_y + \tau \log \pi_y)}{\sum_j \exp(z_j + \tau \log \pi_j)},
        \qquad \pi_j = \frac{n_j}{\sum_k n_k}

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        counts: samples per class in the training set, shape (C,), kept as a buffer.
        tau: τ ≥ 0.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = LogitAdjustedCrossEntropy(counts=[80, 15, 5])
        >>> criterion(torch.zeros(1, 3), torch.tensor([2]))
        tensor(2.9957)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        counts: Any,
        tau: float = 1.0,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        function = functional.logit_adjusted_cross_entropy
        super().__init__(function, class_weight, label_smoothing, ignore_index, reduction, counts, tau=tau)


class LDAMLoss(Loss):
    r"""Module over :func:`longtail.functional.ldam_loss`, for the cosines of :class:`longtail.NormedLinear`.

    .. math:: L(z, y) = -\alpha_y \log \frac{e^{s(z_y - \Delta_y)}}{e^{s(z_y - \Delta_y)} + \sum_{j \ne y} e^{s z_j}},
        \qquad \Delta_j = \Delta_{\max} \left(\frac{\min_k n_k}{n_j}\right)^{1/4}

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        counts: samples per class in the training set, shape (C,), kept as a buffer.
        max_margin: :math:`\Delta_{\max}` ≥ 0, the margin of the smallest class.
        scale: s > 0.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = LDAMLoss(counts=[5000, 500, 50])
        >>> criterion(torch.tensor([[0.9, 0.2, -0.1], [0.3, 0.1, 0.8]]), torch.tensor([0, 2]))
        tensor(0.3472)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        counts: Any,
        max_margin: float = 0.5,
        scale: float = 30.0,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        own = {"max_margin": max_margin, "scale": scale}
        super().__init__(functional.ldam_loss, class_weight, label_smoothing, ignore_index, reduction, counts, **own)


class AsymmetricLoss(Loss):
    r"""Module over :func:`longtail.functional.asymmetric_loss`.

    .. math:: L(z, t) = -\alpha \sum_{i=1}^{C} \bigl( t_i (1 - p_i)^{\gamma_+} \log p_i
        + (1 - t_i) \, \bar p_i^{\gamma_-} \log (1 - \bar p_i) \bigr), \qquad \bar p_i = \max(p_i - m, 0)

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones.
        gamma_negative: :math:`\gamma_-` ≥ 0 of absent labels.
        gamma_positive: :math:`\gamma_+` ≥ 0 of present ones.
        clip: m in [0, 1], what the probabilities of absent labels are lowered by.
        label_smoothing, ignore_index, reduction: as in the function.

    Example:
        >>> criterion = AsymmetricLoss()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1, 1, 0]]))
        tensor(0.8206)
    """

    def __init__(
        self,
        class_weight: Any = None,
        *,
        gamma_negative: float = 4.0,
        gamma_positive: float = 0.0,
        clip: float = 0.05,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        own = {"gamma_negative": gamma_negative, "gamma_positive": gamma_positive, "clip": clip}
        super().__init__(functional.asymmetric_loss, class_weight, label_smoothing, ignore_index, reduction, **own)


def as_buffer(class_weight: Any) -> Tensor:
    """Weights as a tensor of their own in the default dtype."""
    numbers = to_numpy(class_weight)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"class_weight must be one number per class, got {class_weight!r}")
    if not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise ValueError(
            f"class_weight must be finite and >= 0, got {numbers[~(np.isfinite(numbers) & (numbers >= 0))][0]}"
        )
    weights = to_tensor(class_weight).detach().to(torch.get_default_dtype(), copy=True)
    if weights.dim() != 1:
        hint = "; γ is gamma=…" if weights.dim() == 0 else ""
        raise ValueError(f"class_weight must have shape (C,), got {tuple(weights.shape)}{hint}")
    return weights


def _counts_buffer(counts: Any) -> Tensor:
    """Counts as a tensor of their own; where the default dtype is narrow, in a wider one: float16 ends at 65,504."""
    return to_tensor(like(counts, present_counts(counts))).to(compute_dtype(torch.get_default_dtype()), copy=True)
