"""The losses as PyTorch's tests describe modules and operators: ``ModuleInfo`` and ``OpInfo``."""

import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import _dispatch_dtypes
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from longtail import functional
from longtail.functional._blocked import compute_dtype
from tests.functional.linear_cases import CASES
from tests.loss_table import KINDS, LOSSES, counts_like

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REDUCTIONS = ("mean", "sum", "none", "weighted_mean")


def name_of(name, options):
    return "_".join(str(part).replace(".", "") for part in (name, *options))


def inputs_of(loss, device, dtype, requires_grad):
    """Logits, targets and keyword arguments: each shape, kind of target, reduction and option."""
    make = partial(make_tensor, device=device, low=-4, high=4)
    cases = [((6, 5), reduction) for reduction in REDUCTIONS]
    cases += [((2, 5, 3), "none"), ((2, 5, 3, 2), "mean"), ((5,), "none"), ((5,), "mean"), ((0, 5), "mean")]
    for shape, reduction in cases:
        logits = partial(make, shape, dtype=dtype, requires_grad=requires_grad)
        rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
        labels = make_tensor(rows, device=device, dtype=torch.int64, low=0, high=5)
        weight = make_tensor((5,), device=device, dtype=compute_dtype(dtype), low=0.1, high=2)
        yield logits(), labels, {"reduction": reduction}
        yield logits(), labels, {"reduction": reduction, "class_weight": weight}
        yield logits(), labels, {"reduction": reduction, "class_weight": weight, "ignore_index": 1}
        yield logits(), labels, {"reduction": reduction, "class_weight": weight, "label_smoothing": 0.15}
        if len(shape) > 1 or not loss.multi_hot:
            shares = make_tensor(shape, device=device, dtype=compute_dtype(dtype), low=0, high=1)
            yield logits(), shares, {"reduction": reduction, "class_weight": weight}


def reference(loss, logits, target, class_weight=None, label_smoothing=0.0, ignore_index=-100, reduction="mean", **_):
    """The loss by plain NumPy, sample by sample."""
    logits = logits.detach().double()
    shape = logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else ()
    if logits.dim() == 1:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    rows = logits.movedim(1, -1).flatten(0, -2)
    target = target.movedim(1, -1).flatten(0, -2) if target.dim() == logits.dim() else target.flatten()
    weight = None if class_weight is None else class_weight.double().numpy()
    value, _ = loss.reference(rows.numpy(), target.numpy(), weight, label_smoothing, ignore_index, reduction)
    return torch.as_tensor(value).view(shape if reduction == "none" else ())


def _module_info(name):
    """All options of a loss as inputs of its module."""
    losses = [loss for loss in LOSSES if loss.name == name]

    def inputs(info, device, dtype, requires_grad, training, **_):
        for loss in losses:
            for logits, target, options in inputs_of(loss, device, dtype, requires_grad):
                yield ModuleInput(
                    constructor_input=FunctionInput(**loss.options_for(counts_like(logits)), **options),
                    forward_input=FunctionInput(logits, target),
                    reference_fn=lambda module, _, *args, by=loss, options=options: reference(by, *args, **options),
                )

    return ModuleInfo(losses[0].module, module_inputs_func=inputs, dtypes=FLOATS, gradcheck_fast_mode=True)


def _op_info(loss):
    def samples(info, device, dtype, requires_grad, **_):
        for logits, target, options in inputs_of(loss, device, dtype, requires_grad):
            yield SampleInput(logits, args=(target,), kwargs=options | loss.options_for(counts_like(logits)))

    def errors(info, device, **_):
        logits, target = torch.zeros(4, 5, device=device), torch.zeros(4, dtype=torch.int64, device=device)
        options = loss.options_for(counts_like(logits))
        for args, kwargs, error, message in (
            ((target[:3],), {}, ValueError, "target has shape"),
            ((target.float(),), {}, TypeError, "class indices, which must be integers"),
            ((target - 1,), {}, ValueError, "target must be in"),
            ((target + 5,), {}, ValueError, "target must be in"),
            ((target, torch.ones(4)), {}, ValueError, "class_weight, from the counts, has shape"),
            ((target,), {"reduction": "average"}, ValueError, "unknown reduction"),
            ((target,), {"label_smoothing": 1.5}, ValueError, "label_smoothing must be in"),
        ):
            sample = SampleInput(logits, args=args, kwargs=options | kwargs)
            yield ErrorInput(sample, error_type=error, error_regex=message)

    return _described(
        loss.function, name_of(loss.name, loss.options.values()), partial(reference, loss), samples, errors
    )


def _linear_op_info(case):
    def samples(info, device, dtype, requires_grad, **_):
        make = partial(make_tensor, device=device, dtype=dtype, low=-2, high=2, requires_grad=requires_grad)
        for shape, reduction in itertools.product([(7,), (2, 3)], REDUCTIONS):
            target = make_tensor(shape, device=device, dtype=torch.int64, low=0, high=11)
            weight = make_tensor((11,), device=device, dtype=compute_dtype(dtype), low=0.1, high=2)
            options = case.options(11) | {"reduction": reduction}
            yield SampleInput(make((*shape, 5)), args=(make((11, 5)), target), kwargs=options)
            options |= {"bias": make((11,)), "class_weight": weight, "ignore_index": 1}
            yield SampleInput(make((*shape, 5)), args=(make((11, 5)), target), kwargs=options)

    def unfused(features, weight, target, class_weight=None, bias=None, **options):
        wide = None if bias is None else bias.detach().double()
        logits = F.linear(features.detach().double(), weight.detach().double(), wide).flatten(0, -2)
        options = {name: value for name, value in options.items() if name not in case.options(11)}
        loss = getattr(functional, case.name)
        value = loss(logits, target.flatten(), class_weight, **case.options(11), **options)
        return value.view(target.shape) if value.dim() else value

    name = name_of(f"linear_{case.name}", [] if case.option is None else [case.option])
    return _described(case.fused, name, unfused, samples, None)


def _described(function, name, expected, samples, errors):
    return OpInfo(
        name,
        op=function,
        ref=expected,
        dtypes=_dispatch_dtypes(FLOATS),
        sample_inputs_func=samples,
        error_inputs_func=errors,
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_fast_mode=True,
    )


MODULES = [_module_info(name) for name in KINDS]
LOSS_OPERATORS = [_op_info(loss) for loss in LOSSES]
OPERATORS = [*LOSS_OPERATORS, *(_linear_op_info(case) for case in CASES)]
