"""The last layer and its loss as one module, for heads of many classes."""

from __future__ import annotations

import inspect
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longtail import functional
from longtail._checks import check_positive_integer
from longtail.schedules import DeferredReweighting

__all__ = ["FusedLinearLoss"]


class FusedLinearLoss(nn.Module):
    r"""A linear layer fused with a loss of this package: features in, loss out, and never the logits of all classes.

    .. math:: L(x, y) = \text{criterion}(W x + b, y)

    In the manner of :class:`torch.nn.LinearCrossEntropyLoss`. Instead of N × C logits and their gradient it holds
    blocks of a few megabytes. To predict, call ``linear``.

    Shapes: features (…, D), target (…).

    Args:
        in_features: D.
        criterion: the loss, with its class weights, counts and options: :class:`longtail.ClassBalancedLoss` or one of
            the modules over the softmax, sigmoid, focal, softmax focal and logit-adjusted losses, or
            :class:`longtail.schedules.DeferredReweighting` around one of these. The target must be class indices, and
            ``label_smoothing`` 0.
        num_classes: C; by default that of the criterion's weights.
        bias: whether the layer has one.
        group: a process group over whose ranks the classes are split. Each rank holds ``linear`` for its own share
            (``classes``), calls the module with its own samples, and gets the loss of the samples of all ranks.
        device: of the layer.
        dtype: of the layer.

    Attributes:
        linear: the last layer, of the classes of this rank.
        criterion: the loss.
        classes: the range of classes of this rank; all of them without a group.

    Example:
        >>> from longtail import ClassBalancedLoss
        >>> head = FusedLinearLoss(64, ClassBalancedLoss([5000, 500, 50], "focal", beta=0.999))
        >>> features, target = torch.randn(8, 64), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
        >>> head(features, target).backward()
        >>> head.linear(features).shape
        torch.Size([8, 3])
    """

    def __init__(
        self,
        in_features: int,
        criterion: nn.Module,
        num_classes: int | None = None,
        *,
        bias: bool = True,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_integer("in_features", in_features)
        self.criterion = criterion
        self.group = group
        self.function = _fused_function(criterion)
        self.num_classes = _number_of_classes(criterion, num_classes)
        self.classes = _classes_of_rank(self.num_classes, group)
        self.linear = nn.Linear(in_features, len(self.classes), bias, device=device, dtype=dtype)
        if group is not None and not self.linear.weight.is_meta:
            # Ranks that were seeded alike would else begin with the same weights for different classes.
            seed = (torch.initial_seed() + dist.get_rank(group)) % 2**63
            generator = torch.Generator(self.linear.weight.device).manual_seed(seed)
            for parameter in self.linear.parameters():
                nn.init.uniform_(parameter, -(in_features**-0.5), in_features**-0.5, generator)

    @classmethod
    def from_linear(cls, linear: nn.Linear, criterion: nn.Module, group: dist.ProcessGroup | None = None) -> Self:
        """Fuse a layer that exists, such as the last one of a network, with a loss.

        Args:
            linear: the layer of all classes. It is shared, not copied; with a ``group``, each rank copies its share.
            criterion: the loss, as in the constructor.
            group: the processes that share the classes.

        Example:
            >>> from longtail import SoftmaxCrossEntropy
            >>> linear = nn.Linear(64, 10)
            >>> FusedLinearLoss.from_linear(linear, SoftmaxCrossEntropy()).linear is linear
            True
        """
        bias = linear.bias is not None
        head = cls(linear.in_features, criterion, linear.out_features, bias=bias, group=group, device="meta")
        if group is None:
            head.linear = linear
            return head
        rows = slice(head.classes.start, head.classes.stop)
        head.linear.weight = nn.Parameter(linear.weight.detach()[rows].clone())
        if bias:
            head.linear.bias = nn.Parameter(linear.bias.detach()[rows].clone())
        return head

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``features`` (…, D) for class indices ``target`` (…)."""
        loss = _innermost(self.criterion)
        names = ("counts", "gamma", "tau", "ignore_index", "reduction")
        parameters = inspect.signature(self.function).parameters
        options = {name: getattr(loss, name) for name in names if name in parameters and hasattr(loss, name)}
        _refuse_smoothing(loss)
        class_weight = self.criterion.class_weight
        linear = self.linear
        result: Tensor = self.function(
            features, linear.weight, target, class_weight, bias=linear.bias, group=self.group, **options
        )
        return result

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        share = "" if self.group is None else f", classes={self.classes.start}…{self.classes.stop - 1}"
        return f"num_classes={self.num_classes}{share}"


def _innermost(criterion: nn.Module) -> nn.Module:
    """The loss itself, whose weights a schedule may replace."""
    return criterion.criterion if isinstance(criterion, DeferredReweighting) else criterion


def _fused_function(criterion: nn.Module) -> Any:
    """The function that fuses a loss with the last layer."""
    loss = _innermost(criterion)
    name = getattr(getattr(loss, "function", None), "__name__", None)
    fused = getattr(functional, f"linear_{name}", None)
    if fused is None:
        known = [each.removeprefix("linear_") for each in functional.__all__ if each.startswith("linear_")]
        found = name or type(loss).__name__
        raise TypeError(f"criterion must be a module over {', '.join(known)}; {found} cannot be fused with a layer")
    _refuse_smoothing(loss)
    return fused


def _refuse_smoothing(loss: nn.Module) -> None:
    if loss.label_smoothing:
        raise ValueError(f"a fused layer has no label_smoothing, got {loss.label_smoothing}")


def _number_of_classes(criterion: nn.Module, given: int | None) -> int:
    if given is not None:
        check_positive_integer("num_classes", given)
    for name in ("class_weight", "counts"):
        values = getattr(_innermost(criterion), name, None)
        if values is not None:
            if given not in (None, len(values)):
                raise ValueError(f"num_classes is {given}, but {name} of the criterion has {len(values)} classes")
            return len(values)
    if given is None:
        raise ValueError("num_classes must be given: the criterion has neither class weights nor counts")
    return int(given)


def _classes_of_rank(classes: int, group: dist.ProcessGroup | None) -> range:
    if group is None:
        return range(classes)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    return range(classes * rank // ranks, classes * (rank + 1) // ranks)
