"""Class-balanced losses: any loss of this package, or any other, with weights from the samples per class."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from longtail import _modules
from longtail._checks import check_choice, check_integer
from longtail._modules import *  # noqa: F403
from longtail._modules import COMMON, Device, Loss, LossFunction, Weighted, is_meta
from longtail._modules import LOSSES as LOSSES  # the lab knows it from here
from longtail.counts import class_counts, to_numpy
from longtail.functional._apply import REDUCTIONS, is_traced, mean_weight, no_indices, reduce_rows, sample_weights
from longtail.functional._blocked import compute_dtype
from longtail.weights import DEFAULT_BETA as DEFAULT_BETA
from longtail.weights import class_weights

__all__ = ["ClassBalanced", "ClassBalancedLoss"]
__all__ += _modules.__all__


LOSS_ALIASES = {"balanced_softmax": "logit_adjusted"}
"""Losses that people know by another name than that in :data:`LOSSES`: at τ = 1 they are the same."""


def find_loss(name: str) -> str:
    """The name of a loss in :data:`LOSSES`, of this or of the other name that people know it by.

    Example:
        >>> find_loss("focal"), find_loss("balanced_softmax")
        ('focal', 'logit_adjusted')
    """
    check_choice("loss", name, (*LOSSES, *LOSS_ALIASES))
    return LOSS_ALIASES.get(name, name)


def owners_of(option: str) -> list[str]:
    """The losses that have an option.

    Example:
        >>> owners_of("gamma")
        ['focal', 'softmax_focal']
    """
    return [name for name, kind in LOSSES.items() if option in kind.options]


def _loss_options(loss: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a loss, those not given at their defaults; others are refused."""
    options = {**LOSSES[loss].options, **COMMON}
    for name, value in given.items():
        owners = owners_of(name)
        if name in COMMON or (name in options and value is not None):
            options[name] = value
        elif not owners:
            raise TypeError(f"ClassBalancedLoss() got an unexpected keyword argument {name!r}")
        elif value is not None:
            losses = f"{' and '.join(owners)} {'loss' if len(owners) == 1 else 'losses'}"
            raise ValueError(f"{name} belongs to the {losses}, and loss={loss!r} has none, got {name}={value}")
    return options


def _listed() -> str:
    """All losses and their options, for a docstring."""
    lines = []
    for name, kind in LOSSES.items():
        options = ", ".join(f"{option} = {value:g}" for option, value in kind.options.items())
        lines.append(f'* ``"{name}"``: :func:`longtail.functional.{kind.function.__name__}`')
        lines[-1] += f"; {options}" if options else ""
        lines[-1] += "; no class weights by default" if kind.scheme == "uniform" else ""
        lines[-1] += "".join(f'; also ``"{other}"``' for other, loss in LOSS_ALIASES.items() if loss == name)
    return "\n    ".join(lines)


class Balance(NamedTuple):
    """How class weights follow from counts: arguments of :func:`longtail.class_weights`."""

    scheme: str
    beta: Any
    normalize: str
    absent: str

    def weights(self, counts: Any) -> Any:
        """Class weights; without values where the counts have none."""
        return counts if is_meta(counts) else class_weights(counts, self.scheme, self.beta, self.normalize, self.absent)

    def keep_in(self, module: nn.Module) -> None:
        """Set the arguments as attributes of a module, β as a number or a tuple, and only where it was used."""
        betas = to_numpy(self.beta).astype(float).tolist() if self.scheme == "effective" else None
        beta = tuple(betas) if isinstance(betas, list) else betas
        for name, value in self._replace(beta=beta)._asdict().items():
            setattr(module, name, value)


class ClassBalancedLoss(Loss):
    r"""A class-balanced loss: softmax, sigmoid and focal are those of the paper.

    .. math:: \mathrm{CB}(z, y) = \alpha_y \, L(z, y), \qquad
        \alpha_i \propto \frac{1}{E_{n_i}} = \frac{1-\beta}{1-\beta^{n_i}}, \qquad \sum_i \alpha_i = C

    Shapes: logits (N, C) or (N, C, d1, …); target (N) or (N, d1, …), or of the logits' shape for soft labels and,
    with the sigmoid, focal and asymmetric losses, multi-hot ones.

    Args:
        counts: samples per class in the training set, shape (C,), or by class index, such as a
            ``collections.Counter`` of the labels.
        loss: one of the losses listed below.
        beta: β in [0, 1], one for all or one per class: 0 gives no re-weighting, 1 inverse frequency. Default 0.999
            with the scheme ``"effective"``.
        gamma: γ ≥ 0 of the focal and softmax_focal losses; the other losses have none.
        scheme: as in :func:`longtail.class_weights`; by default ``"effective"`` if β is given, else that of the loss.
        normalize, absent: as in :func:`longtail.class_weights`.
        device, dtype: of the buffers; by default the device in use (``with torch.device(…)``), else that of the counts,
            and the default dtype.
        options: other options of the loss, and those of all losses: ``label_smoothing``, ``ignore_index`` and
            ``reduction``, as in :mod:`longtail.functional`.

    Losses, with the defaults of their options:

    {losses}

    Attributes:
        class_weight: α, a buffer of shape (C,).
        counts: the samples per class, a buffer of shape (C,). Both follow ``.to()`` and ``state_dict()``; ``.half()``
            does not convert the counts.

    The arguments from which α follows are attributes, too: ``scheme``, ``beta`` (None, a number or a tuple with one per
    class), ``normalize`` and ``absent``.

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

    scheme: str
    beta: float | tuple[float, ...] | None
    normalize: str
    absent: str

    if __doc__:  # python -OO
        __doc__ = __doc__.replace("{losses}", _listed())

    def __init__(
        self,
        counts: Any,
        loss: str = "softmax",
        beta: Any = None,
        gamma: float | None = None,
        *,
        scheme: str | None = None,
        normalize: str = "classes",
        absent: str = "error",
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        loss = find_loss(loss)
        kind = LOSSES[loss]
        chosen = _loss_options(loss, {"gamma": gamma, **options})
        if scheme is None:
            scheme = kind.scheme if beta is None else "effective"
        balance = Balance(scheme, DEFAULT_BETA if beta is None else beta, normalize, absent)
        super().__init__(kind.function, balance.weights(counts), counts, chosen, device, dtype)
        self.loss = loss
        balance.keep_in(self)

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
        return f"loss={self.loss!r}, {_describe(self)}, {super().extra_repr()}"


class ClassBalanced(Weighted):
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
        device, dtype: of the buffers, as in :class:`ClassBalancedLoss`.
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
    scheme: str
    beta: float | tuple[float, ...] | None
    normalize: str
    absent: str

    def __init__(
        self,
        base_loss: LossFunction,
        counts: Any,
        beta: Any = DEFAULT_BETA,
        *,
        scheme: str = "effective",
        normalize: str = "classes",
        absent: str = "error",
        ignore_index: int = COMMON["ignore_index"],
        reduction: str = COMMON["reduction"],
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not callable(base_loss):
            raise TypeError(f"base_loss must be callable, got {base_loss!r}")
        if getattr(base_loss, "reduction", "none") != "none":
            raise ValueError(
                f'base_loss must return one loss per sample: build it with reduction="none", '
                f"not {base_loss.reduction!r}"  # type: ignore[attr-defined]
            )
        check_choice("reduction", reduction, REDUCTIONS)
        check_integer("ignore_index", ignore_index)
        balance = Balance(scheme, beta, normalize, absent)
        super().__init__(balance.weights(counts), counts, device, dtype)
        self.base_loss = base_loss
        self.ignore_index = int(ignore_index)
        self.reduction = reduction
        balance.keep_in(self)

    def forward(self, inputs: Any, target: Tensor, class_weight: Tensor | None = None) -> Tensor:
        """Return the weighted loss of ``inputs`` for ``target``.

        Args:
            inputs: whatever the base loss takes.
            target: class indices, or, of shape (N, C, …), dense.
            class_weight: weights for this call instead of those of the module.
        """
        class_weight = self.class_weight if class_weight is None else class_weight
        if not isinstance(target, Tensor):
            raise TypeError(f"target must be a tensor, got {type(target).__name__}")
        classes = class_weight.numel()
        # PyTorch before 2.5 cannot compile getattr of a tensor with a default.
        shape = inputs.shape if isinstance(inputs, Tensor) else getattr(inputs, "shape", None)
        # A target of one dimension is of class indices, also where the loss has a single logit for each.
        dense = target.dim() > 1 and (target.is_floating_point() or target.shape == shape)
        if not dense and target.is_floating_point():
            raise no_indices(target)
        if dense and target.shape[1:2] != (classes,):
            raise ValueError(f"target of shape {tuple(target.shape)} does not fit counts of {classes} classes")
        if dense:
            weight, valid = mean_weight(target.to(class_weight.dtype), class_weight), None
        else:
            _, weight, valid = sample_weights(target, class_weight, self.ignore_index, check=not is_traced(target))
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
        return f"{base}{_describe(self)}, num_classes={self.class_weight.numel()}, {options}"


def _describe(module: ClassBalancedLoss | ClassBalanced) -> str:
    """Where class weights come from, for ``repr()``."""
    beta = ""
    if module.beta is not None:
        beta = f"beta={'one per class' if isinstance(module.beta, tuple) else f'{module.beta:g}'}, "
    return f"scheme={module.scheme!r}, {beta}normalize={module.normalize!r}"
