"""Class-balanced losses: any loss of this package, or any other, with weights from the samples per class."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from longtail import functional
from longtail._checks import check_choice, check_integer
from longtail._modules import (
    AsymmetricLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedCrossEntropy,
    Loss,
    LossFunction,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SoftmaxFocalLoss,
    as_buffer,
)
from longtail.counts import class_counts, to_numpy
from longtail.functional._apply import REDUCTIONS, is_traced, mean_weight, no_indices, own_weight, reduce_rows
from longtail.functional._blocked import compute_dtype
from longtail.weights import class_weights

__all__ = [
    "AsymmetricLoss",
    "ClassBalanced",
    "ClassBalancedLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedCrossEntropy",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SoftmaxFocalLoss",
]


class LossKind(NamedTuple):
    """A loss that can be class-balanced: its function, and what is special about it."""

    function: LossFunction
    options: Mapping[str, float] = MappingProxyType({})
    """Those of its own, with their defaults."""
    needs_counts: bool = False
    """Whether it takes the samples per class itself, beside the weights that are made of them."""
    is_sigmoid: bool = False
    """Whether each class is a question of its own, answered by a sigmoid."""
    scheme: str = "effective"
    """Class weights unless others are asked for: a loss that corrects for the class prior itself has none."""


DEFAULT_BETA = 0.999

LOSSES = {
    "softmax": LossKind(functional.softmax_cross_entropy),
    "sigmoid": LossKind(functional.sigmoid_cross_entropy, is_sigmoid=True),
    "focal": LossKind(functional.focal_loss, {"gamma": 0.5}, is_sigmoid=True),
    "softmax_focal": LossKind(functional.softmax_focal_loss, {"gamma": 0.5}),
    "logit_adjusted": LossKind(
        functional.logit_adjusted_cross_entropy, {"tau": 1.0}, needs_counts=True, scheme="uniform"
    ),
    "ldam": LossKind(functional.ldam_loss, {"max_margin": 0.5, "scale": 30.0}, needs_counts=True),
    "asymmetric": LossKind(
        functional.asymmetric_loss, {"gamma_negative": 4.0, "gamma_positive": 0.0, "clip": 0.05}, is_sigmoid=True
    ),
}


def owners_of(option: str) -> list[str]:
    """The losses that have an option.

    Example:
        >>> owners_of("gamma")
        ['focal', 'softmax_focal']
    """
    return [name for name, kind in LOSSES.items() if option in kind.options]


def _own_options(loss: str, given: dict[str, float | None]) -> dict[str, float]:
    """The options of a loss, those not given at their defaults; others are refused."""
    kind = LOSSES[loss]
    for name, value in given.items():
        if value is not None and name not in kind.options:
            owners = owners_of(name)
            losses = f"{' and '.join(owners)} {'loss' if len(owners) == 1 else 'losses'}"
            raise ValueError(f"{name} belongs to the {losses}, and loss={loss!r} has none, got {name}={value}")
    return {**kind.options, **{name: value for name, value in given.items() if value is not None}}


class ClassBalancedLoss(Loss):
    r"""A class-balanced loss: softmax, sigmoid and focal are those of the paper.

    .. math:: \mathrm{CB}(z, y) = \alpha_y \, L(z, y), \qquad
        \alpha_i \propto \frac{1}{E_{n_i}} = \frac{1-\beta}{1-\beta^{n_i}}, \qquad \sum_i \alpha_i = C

    Shapes: logits (N, C) or (N, C, d1, …); target (N) or (N, d1, …), or of the logits' shape for soft labels and,
    with the sigmoid, focal and asymmetric losses, multi-hot ones.

    Args:
        counts: samples per class in the training set, shape (C,). The losses ``"logit_adjusted"`` and ``"ldam"`` need
            them themselves, too, and keep them as a buffer.
        loss: ``"softmax"``, ``"sigmoid"``, ``"focal"``, ``"softmax_focal"``, ``"logit_adjusted"``, ``"ldam"`` or
            ``"asymmetric"``: the functions of :mod:`longtail.functional`.
        beta: β in [0, 1], one for all or one per class: 0 gives no re-weighting, 1 inverse frequency. Default 0.999;
            with ``"logit_adjusted"``, which corrects for the class prior itself, no weights unless β is given.
        gamma: γ ≥ 0 of the focal and softmax_focal losses, default 0.5; the other losses have none.
        tau: τ ≥ 0 of the logit_adjusted loss, default 1.
        max_margin, scale: of the ldam loss, default 0.5 and 30.
        gamma_negative, gamma_positive, clip: of the asymmetric loss, default 4, 0 and 0.05.
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
        beta: Any = None,
        gamma: float | None = None,
        *,
        tau: float | None = None,
        max_margin: float | None = None,
        scale: float | None = None,
        gamma_negative: float | None = None,
        gamma_positive: float | None = None,
        clip: float | None = None,
        scheme: str | None = None,
        normalize: str = "classes",
        absent: str = "error",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        check_choice("loss", loss, tuple(LOSSES))
        given = {"gamma": gamma, "tau": tau, "max_margin": max_margin, "scale": scale}
        given |= {"gamma_negative": gamma_negative, "gamma_positive": gamma_positive, "clip": clip}
        own = _own_options(loss, given)
        kind = LOSSES[loss]
        if scheme is None:
            scheme = kind.scheme if beta is None else "effective"
        beta = DEFAULT_BETA if beta is None else beta
        weights = class_weights(counts, scheme, beta, normalize, absent)
        own_counts = counts if kind.needs_counts else None
        super().__init__(kind.function, weights, label_smoothing, ignore_index, reduction, own_counts, **own)
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
            as PyTorch's losses do with ``reduction="none"``. Inputs are whatever it takes, not only logits, and a
            target of shape (N,) holds class indices.
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
        self.register_buffer("class_weight", as_buffer(class_weights(counts, scheme, beta, normalize, absent)))
        check_integer("ignore_index", ignore_index)
        self.ignore_index = int(ignore_index)
        self.reduction = reduction
        self.description = _describe(scheme, beta, normalize)

    def forward(self, inputs: Any, target: Tensor) -> Tensor:
        """Return the weighted loss of ``inputs`` for ``target``: class indices, or, of shape (N, C, …), dense."""
        if not isinstance(target, Tensor):
            raise TypeError(f"target must be a tensor, got {type(target).__name__}")
        classes = self.class_weight.numel()
        shape = getattr(inputs, "shape", None)
        # A target of one dimension is of class indices, also where the loss has a single logit for each.
        dense = target.dim() > 1 and (target.is_floating_point() or target.shape == shape)
        if not dense and target.is_floating_point():
            raise no_indices(target)
        if dense and target.shape[1:2] != (classes,):
            raise ValueError(f"target of shape {tuple(target.shape)} does not fit counts of {classes} classes")
        if dense:
            weight, valid = mean_weight(target.to(self.class_weight.dtype), self.class_weight), None
        else:
            _, weight, valid = own_weight(target, self.class_weight, self.ignore_index, check=not is_traced(target))
        rows = self.base_loss(inputs, target)
        if rows.shape == shape and rows.shape != weight.shape:
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
    shown = ""
    if scheme == "effective":
        shown = f"beta={'one per class' if to_numpy(beta).ndim else f'{float(beta):g}'}, "
    return f"scheme={scheme!r}, {shown}normalize={normalize!r}"
