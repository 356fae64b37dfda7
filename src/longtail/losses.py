"""The losses as modules: weights are buffers, forward is one call into :mod:`longtail.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from longtail import functional
from longtail._checks import check_choice, check_in_unit_interval, check_non_negative
from longtail.counts import class_counts, to_numpy
from longtail.functional._apply import REDUCTIONS, is_traced, mean_weight, own_weight, reduce_rows
from longtail.functional._blocked import compute_dtype
from longtail.weights import class_weights

__all__ = [
    "ClassBalanced",
    "ClassBalancedLoss",
    "FocalLoss",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
]

LossFunction = Callable[..., Tensor]


class _Loss(nn.Module):
    """What the modules share: class weights in a buffer that ``.to()`` moves, and options, checked once."""

    class_weight: Tensor | None

    def __init__(
        self,
        function: LossFunction,
        class_weight: Any,
        label_smoothing: float,
        ignore_index: int,
        reduction: str,
        **own_options: float,
    ) -> None:
        super().__init__()
        check_in_unit_interval("label_smoothing", label_smoothing)
        check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("class_weight", None if class_weight is None else _as_buffer(class_weight))
        self.function = function
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.reduction = reduction
        for name, value in own_options.items():
            setattr(self, name, value)
        self._option_names = (*own_options, "label_smoothing", "ignore_index", "reduction")

    def _options(self) -> dict[str, Any]:
        # Read anew in every call, so that `criterion.reduction = "sum"` does what it says, as with PyTorch's losses.
        return {name: getattr(self, name) for name in self._option_names}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``logits`` (N, C, …) for ``target``, as the function of the same name does."""
        return self.function(logits, target, self.class_weight, **self._options())

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        weights = {} if self.class_weight is None else {"num_classes": self.class_weight.numel()}
        return ", ".join(f"{name}={value!r}" for name, value in (weights | self._options()).items())


class SoftmaxCrossEntropy(_Loss):
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


class SigmoidCrossEntropy(_Loss):
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


class FocalLoss(_Loss):
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
        check_non_negative("gamma", gamma)
        super().__init__(functional.focal_loss, class_weight, label_smoothing, ignore_index, reduction, gamma=gamma)


LOSSES: dict[str, LossFunction] = {
    "softmax": functional.softmax_cross_entropy,
    "sigmoid": functional.sigmoid_cross_entropy,
    "focal": functional.focal_loss,
}


class ClassBalancedLoss(_Loss):
    r"""Class-balanced softmax, sigmoid or focal loss: the loss of the paper.

    .. math:: \mathrm{CB}(z, y) = \alpha_y \, L(z, y), \qquad
        \alpha_i \propto \frac{1}{E_{n_i}} = \frac{1-\beta}{1-\beta^{n_i}}, \qquad \sum_i \alpha_i = C

    Shapes: logits (N, C) or (N, C, d1, …); target (N) or (N, d1, …), or of the logits' shape for soft labels and,
    with the sigmoid and focal losses, multi-hot ones.

    Args:
        counts: samples per class in the training set, shape (C,).
        loss: ``"softmax"``, ``"sigmoid"`` or ``"focal"``.
        beta: β in [0, 1], one for all or one per class: 0 gives no re-weighting, 1 inverse frequency.
        gamma: γ ≥ 0 of the focal loss, default 0.5; the other losses have none.
        scheme, normalize, absent: as in :func:`longtail.class_weights`.
        label_smoothing, ignore_index, reduction: as in :mod:`longtail.functional`.

    Attributes:
        class_weight: α, a buffer of shape (C,) in the default dtype; it follows ``.to()`` and ``state_dict()``.

    Example:
        >>> criterion = ClassBalancedLoss([5000, 500, 50], loss="focal", beta=0.999, gamma=0.5)
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]], requires_grad=True)
        >>> loss = criterion(logits, torch.tensor([0, 2]))
        >>> loss.backward()
        >>> loss.item()
        1.86...

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019.
    """

    def __init__(
        self,
        counts: Any,
        loss: str = "softmax",
        beta: Any = 0.999,
        gamma: float | None = None,
        *,
        scheme: str = "effective",
        normalize: str = "classes",
        absent: str = "error",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        check_choice("loss", loss, tuple(LOSSES))
        own = {}
        if loss == "focal":
            own["gamma"] = 0.5 if gamma is None else gamma
            check_non_negative("gamma", own["gamma"])
        elif gamma is not None:
            raise ValueError(f"gamma belongs to the focal loss, and loss={loss!r} has none, got gamma={gamma}")
        weights = class_weights(counts, scheme, beta, normalize, absent)
        super().__init__(LOSSES[loss], weights, label_smoothing, ignore_index, reduction, **own)
        self.description = _describe(scheme, beta, normalize)
        self.loss = loss

    @classmethod
    def from_labels(cls, labels: Any, *, num_classes: int | None = None, **options: Any) -> Self:
        """Count the labels of the whole training set, then build the loss.

        Args:
            labels: whatever :func:`longtail.class_counts` takes.
            num_classes: C, if the last classes could be missing from ``labels``.
            options: arguments of :class:`ClassBalancedLoss`.

        Example:
            >>> ClassBalancedLoss.from_labels([0, 0, 0, 1], beta=1).class_weight
            tensor([0.5000, 1.5000])
        """
        return cls(class_counts(labels, num_classes), **options)

    @classmethod
    def from_dataset(cls, dataset: Any, *, num_classes: int | None = None, **options: Any) -> Self:
        """Count the labels of a training set, then build the loss.

        Args:
            dataset: anything with ``.targets`` or ``.labels``; a ``TensorDataset``; a ``Subset`` or ``ConcatDataset``
                over such.
            num_classes: C, if the last classes could be missing from the data.
            options: arguments of :class:`ClassBalancedLoss`.

        Example:
            >>> data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
            >>> ClassBalancedLoss.from_dataset(data, beta=1).class_weight
            tensor([0.5000, 1.5000])
        """
        return cls.from_labels(dataset, num_classes=num_classes, **options)

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        return f"loss={self.loss!r}, {self.description}, {super().extra_repr()}"


class ClassBalanced(nn.Module):
    r"""The class-balanced term around any loss that returns one value per sample.

    .. math:: \mathrm{CB}(x, y) = \alpha_y \, L(x, y)

    The term does not depend on what the loss is: cross-entropy, a margin loss, your own. A loss that returns one value
    per class and sample, of the input's shape, is summed over the classes first.

    Args:
        base_loss: called as ``base_loss(inputs, target)``, with the target as it is; returns one loss per sample,
            as PyTorch's losses do with ``reduction="none"``. Inputs are whatever it takes, not only logits.
        counts: samples per class in the training set, shape (C,).
        beta: β in [0, 1], one for all or one per class.
        scheme, normalize, absent: as in :func:`longtail.class_weights`.
        ignore_index: samples with this class index do not count, whatever ``base_loss`` returns for them.
        reduction: ``"mean"``, ``"sum"``, ``"none"`` or ``"weighted_mean"``, as in :mod:`longtail.functional`.

    Example:
        >>> criterion = ClassBalanced(nn.CrossEntropyLoss(reduction="none"), [5000, 500, 50])
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]])
        >>> criterion(logits, torch.tensor([0, 2]))
        tensor(0.8805)
        >>> ClassBalancedLoss([5000, 500, 50])(logits, torch.tensor([0, 2]))
        tensor(0.8805)
    """

    class_weight: Tensor

    def __init__(
        self,
        base_loss: LossFunction,
        counts: Any,
        beta: Any = 0.999,
        *,
        scheme: str = "effective",
        normalize: str = "classes",
        absent: str = "error",
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if not callable(base_loss):
            raise TypeError(f"base_loss must be callable, got {base_loss!r}")
        if getattr(base_loss, "reduction", "none") != "none":
            raise ValueError(
                f'base_loss must return one loss per sample: build it with reduction="none", '
                f"not {base_loss.reduction!r}"  # type: ignore[attr-defined]
            )
        check_choice("reduction", reduction, REDUCTIONS)
        self.base_loss = base_loss
        self.register_buffer("class_weight", _as_buffer(class_weights(counts, scheme, beta, normalize, absent)))
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.description = _describe(scheme, beta, normalize)

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the weighted loss of ``inputs`` for ``target``: class indices, or a target of their shape."""
        if not isinstance(target, Tensor):
            raise TypeError(f"target must be a tensor, got {type(target).__name__}")
        classes = self.class_weight.numel()
        dense = target.is_floating_point() or target.shape == inputs.shape
        if dense and target.shape[1:2] != (classes,):
            raise ValueError(f"target of shape {tuple(target.shape)} does not fit counts of {classes} classes")
        if dense:
            weight, valid = mean_weight(target.to(self.class_weight.dtype), self.class_weight), None
        else:
            _, weight, valid = own_weight(target, self.class_weight, self.ignore_index, check=not is_traced(inputs))
        rows = self.base_loss(inputs, target)
        if rows.shape == inputs.shape and rows.shape != weight.shape:
            rows = rows.sum(1)
        if rows.shape != weight.shape:
            raise ValueError(
                f'base_loss must return one loss per sample, of shape {tuple(weight.shape)} (reduction="none"), '
                f"got {tuple(rows.shape)}"
            )
        rows = rows.to(compute_dtype(rows.dtype))
        if valid is not None:
            rows = torch.where(valid, rows, 0)
        return reduce_rows(rows, weight.to(rows.dtype), valid, self.reduction)

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        base = "" if isinstance(self.base_loss, nn.Module) else f"base_loss={self.base_loss!r}, "
        options = f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
        return f"{base}{self.description}, num_classes={self.class_weight.numel()}, {options}"


def _describe(scheme: str, beta: Any, normalize: str) -> str:
    """Where class weights come from, for ``repr()``."""
    beta = f"{beta:g}" if isinstance(beta, (int, float)) else "one per class"
    return f"scheme={scheme!r}, {f'beta={beta}, ' if scheme == 'effective' else ''}normalize={normalize!r}"


def _as_buffer(class_weight: Any) -> Tensor:
    """Weights as a tensor of their own in the default dtype."""
    numbers = to_numpy(class_weight)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"class_weight must be one number per class, got {class_weight!r}")
    if not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise ValueError(
            f"class_weight must be finite and >= 0, got {numbers[~(np.isfinite(numbers) & (numbers >= 0))][0]}"
        )
    tensor = class_weight if isinstance(class_weight, Tensor) else torch.as_tensor(numbers)
    weights = tensor.detach().to(torch.get_default_dtype(), copy=True)
    if weights.dim() != 1:
        hint = "; γ is gamma=…" if weights.dim() == 0 else ""
        raise ValueError(f"class_weight must have shape (C,), got {tuple(weights.shape)}{hint}")
    return weights
