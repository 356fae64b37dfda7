"""The losses as modules: weights are buffers, forward is one call into :mod:`longtail.functional`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from longtail import functional
from longtail._checks import check_choice, check_in_unit_interval, check_integer, check_loss_option
from longtail._docstrings import module_docstring
from longtail.counts import check_counts, check_no_class_is_absent, check_not_masked, to_numpy
from longtail.functional._apply import REDUCTIONS
from longtail.functional._blocked import compute_dtype

__all__ = [
    "AsymmetricLoss",
    "BalancedSoftmaxLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedCrossEntropy",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SoftmaxFocalLoss",
    "VectorScalingLoss",
]

LossFunction = Callable[..., Tensor]
Device = torch.device | str | None

COMMON = {
    name: parameter.default
    for name, parameter in inspect.signature(functional.softmax_cross_entropy).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
"""Options that every loss has, with their defaults: the softmax loss has no others."""


class LossKind(NamedTuple):
    """A loss by its name: its function, what follows from the function's signature, and what does not."""

    function: LossFunction
    module: type[FunctionLoss]
    is_sigmoid: bool
    """Whether each class is a separate yes-or-no question, answered by a sigmoid."""
    scheme: str
    """Class weights of :class:`longtail.ClassBalancedLoss` by default; uniform for a loss that corrects for the class
    prior itself."""
    title: str
    """For people."""
    options: Mapping[str, float]
    """Options that not every loss has, with their defaults."""
    needs_counts: bool
    """Whether the loss takes the samples per class itself, beside the weights that are made of them."""


LOSSES: dict[str, LossKind] = {}
"""All losses by name; each module below adds its own."""


class Weighted(nn.Module):
    """A module with class weights, and perhaps counts, in buffers that ``.to()`` moves and ``state_dict()`` saves."""

    class_weight: Tensor | None
    counts: Tensor | None

    def __init__(self, class_weight: Any, counts: Any, device: Device, dtype: torch.dtype | None) -> None:
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        weights = None if class_weight is None else as_buffer("class_weight", class_weight, device, dtype)
        # Where the dtype is narrow, counts have a wider one: float16 ends at 65,504.
        number = None if counts is None else as_buffer("counts", counts, device, compute_dtype(dtype))
        self.register_buffer("class_weight", weights)
        self.register_buffer("counts", number)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        counts = self.counts
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if counts is not None and self.counts is not None and not counts.is_meta:
            # ``.half()`` converts the weights, but leaves the counts.
            self.counts = counts.to(self.counts.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.counts is not None:  # a checkpoint of longtail 0.1 has weights only
            state_dict.setdefault(f"{prefix}counts", self.counts)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def as_buffer(argument: str, values: Any, device: Device, dtype: torch.dtype) -> Tensor:
    """One number per class as a new tensor."""
    check_not_masked(argument, values)
    if is_meta(values):
        numbers = np.ones(values.shape)
    else:
        numbers = to_numpy(check_counts(values) if argument == "counts" else values)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"{argument} must be one number per class, got {values!r}")
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        raise ValueError(f"{argument} must be finite and >= 0, got {numbers[wrong][0]}")
    if numbers.ndim != 1:
        hint = "; γ is gamma=…" if numbers.ndim == 0 else ""
        raise ValueError(f"{argument} must have shape (C,), got {numbers.shape}{hint}")
    # With neither a device given nor ``with torch.device(…)``, a tensor stays where it is.
    source = values.detach() if isinstance(values, Tensor) else np.array(numbers, dtype=np.float64)
    return torch.as_tensor(source, dtype=dtype, device=device).clone()


def is_meta(values: Any) -> bool:
    """Whether these are a tensor without values, as models have that are built under ``torch.device("meta")``."""
    return isinstance(values, Tensor) and values.is_meta


class Loss(Weighted):
    """A loss as a module: class weights, counts if the function takes them, and options, checked once.

    The function is called with the options as they are at that time, so that ``criterion.reduction = "sum"`` does what
    it says, as with PyTorch's losses.
    """

    def __init__(
        self,
        function: LossFunction,
        class_weight: Any,
        counts: Any,
        options: Mapping[str, Any],
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(class_weight, counts, device, dtype)
        needs_counts = "counts" in inspect.signature(function).parameters
        if needs_counts and not is_meta(counts):
            check_no_class_is_absent(check_counts(counts))
        self.function = function
        for name, value in options.items():
            check_option(name, value)
            setattr(self, name, int(value) if name == "ignore_index" else value)
        self._option_names = tuple(options)
        self._arguments = (*(["counts"] if needs_counts else []), *options)

    def forward(self, logits: Tensor, target: Tensor, class_weight: Tensor | None = None) -> Tensor:
        """Return the loss of ``logits`` (N, C, …) for ``target``, as the function does.

        Args:
            logits: scores of shape (N, C), (N, C, d1, …) or (C,).
            target: class indices, or a target of the logits' shape.
            class_weight: weights for this call instead of those of the module.
        """
        buffers = self._buffers  # to ask a module for a buffer by its name takes long
        options = {name: buffers[name] if name == "counts" else getattr(self, name) for name in self._arguments}
        weight = buffers["class_weight"] if class_weight is None else class_weight
        return self.function(logits, target, weight, **options)

    def extra_repr(self) -> str:
        """What ``repr()`` shows of the options."""
        per_class = self.class_weight if self.counts is None else self.counts
        shown = {} if per_class is None else {"num_classes": per_class.numel()}
        shown |= {name: getattr(self, name) for name in self._option_names}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def check_option(name: str, value: Any) -> None:
    """Refuse what an option of a loss cannot be."""
    if name == "reduction":
        check_choice(name, value, REDUCTIONS)
    elif name == "ignore_index":
        check_integer(name, value)
    elif name == "label_smoothing":
        check_in_unit_interval(name, value)
    else:
        check_loss_option(name, value)


class FunctionLoss(Loss):
    """A module made from a function: ``class FocalLoss(FunctionLoss, function=functional.focal_loss, name="focal")``.

    Options, their defaults, the signature and most of the docstring are those of the function.
    """

    kind: ClassVar[LossKind]

    def __init_subclass__(
        cls,
        function: LossFunction | None = None,
        name: str = "",
        title: str = "",
        is_sigmoid: bool = False,
        scheme: str = "effective",
    ) -> None:
        super().__init_subclass__()
        if function is None:  # a subclass of a loss
            return
        signature = inspect.signature(function)
        keywords = [each for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY]
        own = {each.name: each.default for each in keywords if each.name not in (*COMMON, "counts")}
        needs_counts = "counts" in signature.parameters
        title = title or name.replace("_", " ")
        cls.kind = LOSSES[name] = LossKind(function, cls, is_sigmoid, scheme, title, own, needs_counts)
        cls.__doc__ = module_docstring(cls.__doc__, function)
        class_weight = signature.parameters["class_weight"].replace(annotation=Any)
        buffers = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=None) for each in ("device", "dtype")
        ]
        cls.__signature__ = inspect.Signature([class_weight, *keywords, *buffers])  # type: ignore[attr-defined]

    def __init__(
        self,
        class_weight: Any = None,
        *,
        counts: Any = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        kind, owner = self.kind, type(self).__name__
        if kind.needs_counts and counts is None:
            raise TypeError(f"{owner}() needs counts=…, the samples per class in the training set")
        defaults = {**kind.options, **COMMON}
        unknown = [name for name in options if name not in defaults]
        unknown += ["counts"] if counts is not None and not kind.needs_counts else []
        if unknown:
            raise TypeError(
                f"{owner}() got an unexpected keyword argument {unknown[0]!r}: it has {', '.join(defaults)}"
            )
        super().__init__(kind.function, class_weight, counts, {**defaults, **options}, device, dtype)


class SoftmaxCrossEntropy(FunctionLoss, function=functional.softmax_cross_entropy, name="softmax"):
    """Softmax cross-entropy with class weights.

    Example:
        >>> criterion = SoftmaxCrossEntropy()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1698)
    """


class SigmoidCrossEntropy(FunctionLoss, function=functional.sigmoid_cross_entropy, name="sigmoid", is_sigmoid=True):
    """Sigmoid cross-entropy, summed over classes, with class weights.

    Example:
        >>> criterion = SigmoidCrossEntropy()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(1.1333)
    """


class FocalLoss(FunctionLoss, function=functional.focal_loss, name="focal", is_sigmoid=True):
    """Focal loss over sigmoids, summed over classes, with class weights: the paper's.

    Example:
        >>> criterion = FocalLoss(gamma=2.0)
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1977)
    """


class SoftmaxFocalLoss(FunctionLoss, function=functional.softmax_focal_loss, name="softmax_focal"):
    """Focal loss over the softmax, with class weights.

    Example:
        >>> criterion = SoftmaxFocalLoss(gamma=2.0)
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.0041)
    """


class LogitAdjustedCrossEntropy(
    FunctionLoss,
    function=functional.logit_adjusted_cross_entropy,
    name="logit_adjusted",
    title="logit-adjusted softmax",
    scheme="uniform",
):
    """Softmax cross-entropy of logits that carry the class prior; τ = 1 is :class:`BalancedSoftmaxLoss`.

    Example:
        >>> criterion = LogitAdjustedCrossEntropy(counts=[80, 15, 5])
        >>> criterion(torch.zeros(1, 3), torch.tensor([2]))
        tensor(2.9957)
    """


class BalancedSoftmaxLoss(LogitAdjustedCrossEntropy):
    """Balanced softmax: :class:`LogitAdjustedCrossEntropy` under the name of Ren et al., with their τ = 1.

    Args:
        class_weight: α of shape (C,), kept as a buffer; default all ones: the prior alone corrects for the classes'
            sizes.
        counts: samples per class in the training set, shape (C,), kept as a buffer.
        options: those of :class:`LogitAdjustedCrossEntropy`.

    Example:
        >>> criterion = BalancedSoftmaxLoss(counts=[80, 15, 5])
        >>> criterion(torch.zeros(1, 3), torch.tensor([2]))
        tensor(2.9957)

    Reference:
        Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020.
    """


class LDAMLoss(FunctionLoss, function=functional.ldam_loss, name="ldam", title="LDAM"):
    """Label-distribution-aware margin loss, for the cosines of :class:`longtail.NormedLinear`.

    Example:
        >>> criterion = LDAMLoss(counts=[5000, 500, 50])
        >>> criterion(torch.tensor([[0.9, 0.2, -0.1], [0.3, 0.1, 0.8]]), torch.tensor([0, 2]))
        tensor(0.3472)
    """


class AsymmetricLoss(FunctionLoss, function=functional.asymmetric_loss, name="asymmetric", is_sigmoid=True):
    """Asymmetric loss over sigmoids, for several labels per sample.

    Example:
        >>> criterion = AsymmetricLoss()
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1, 1, 0]]))
        tensor(0.8206)
    """


class VectorScalingLoss(FunctionLoss, function=functional.vector_scaling_loss, name="vector_scaling", scheme="uniform"):
    """Vector-scaling (VS) loss: softmax cross-entropy of logits that are scaled and shifted class by class.

    Example:
        >>> criterion = VectorScalingLoss(counts=[5000, 500, 50])
        >>> criterion(torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.0, 1.0]]), torch.tensor([0, 2]))
        tensor(2.4673)
    """
