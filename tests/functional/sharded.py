"""One of the processes of test_linear_sharded.py: ``python -m tests.functional.sharded RANK RANKS FOLDER``."""

import datetime
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from longtail import ClassBalancedLoss, FusedLinearLoss
from tests.functional.linear_cases import LinearCase, layer

SAMPLES, CLASSES = 11, 23
CASES = [
    LinearCase("softmax_cross_entropy"),
    LinearCase("logit_adjusted_cross_entropy", 1.5),
    LinearCase("softmax_focal_loss", 2.0),
    LinearCase("sigmoid_cross_entropy"),
    LinearCase("focal_loss", 0.5),
]
REDUCTIONS = ["mean", "sum", "none", "weighted_mean"]


def share(count, rank, ranks):
    """Unequal shares: what is left goes to the last rank."""
    return slice(rank * (count // ranks), count if rank == ranks - 1 else (rank + 1) * (count // ranks))


def batch():
    """The whole problem, the same in all processes; the first rank has an ignored sample, the others do not."""
    inputs, target, class_weight = layer(SAMPLES, 5, CLASSES)
    target[1] = -100
    return inputs, target, class_weight


def main(rank, ranks, folder):
    start = f"file://{folder / 'start'}"
    dist.init_process_group("gloo", start, datetime.timedelta(seconds=120), ranks, rank)
    group = dist.group.WORLD
    found = {"losses": {}, "bytes": {}, "refused": refused(rank, ranks, group)}
    for case in CASES:
        for reduction in REDUCTIONS:
            found["losses"][case, reduction] = step(case, reduction, rank, ranks, group)
        found["bytes"][case] = [bytes_sent(case, classes, rank, ranks, group) for classes in (40, 4000)]
    found["module"] = module(rank, ranks, group)
    found["parallel"] = data_parallel(rank, ranks, group)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def step(case, reduction, rank, ranks, group):
    """Loss of all samples and gradients of this rank's: by its features, and by the weights of its classes."""
    (features, weight, bias), target, class_weight = batch()
    mine, classes = share(SAMPLES, rank, ranks), share(CLASSES, rank, ranks)
    parts = [
        tensor.detach()[rows].requires_grad_()
        for tensor, rows in zip((features, weight, bias), (mine, classes, classes), strict=True)
    ]
    options = {"bias": parts[2], "reduction": reduction, "group": group, "classes": CLASSES}
    loss = case(parts[0], parts[1], target[mine], class_weight, **options)
    factor = 1 + torch.arange(SAMPLES, dtype=torch.float64)[mine] if reduction == "none" else torch.tensor(2.0).double()
    return loss.detach(), torch.autograd.grad(loss, parts, factor)


def bytes_sent(case, classes, rank, ranks, group):
    """What this rank hands to the process group in a step."""
    (features, weight, bias), target, _ = layer(SAMPLES, 5, classes)
    mine, own = share(SAMPLES, rank, ranks), share(classes, rank, ranks)
    sent = 0
    collectives = {name: getattr(dist, name) for name in ("all_gather", "all_reduce", "reduce_scatter")}

    def counted(name):
        def call(first, *rest, **options):
            nonlocal sent
            payload = rest[0] if name in ("all_gather", "reduce_scatter") else first
            sent += sum(tensor.nbytes for tensor in payload) if isinstance(payload, list) else payload.nbytes
            return collectives[name](first, *rest, **options)

        return call

    for name in collectives:
        setattr(dist, name, counted(name))
    options = {"bias": bias[own], "group": group, "classes": classes}
    case(features[mine], weight[own], target[mine], **options).backward()
    for name, collective in collectives.items():
        setattr(dist, name, collective)
    return sent


def module(rank, ranks, group):
    """A head that holds a share of the classes."""
    torch.manual_seed(0)
    linear = nn.Linear(5, CLASSES).double()
    head = FusedLinearLoss.from_linear(linear, ClassBalancedLoss([30] * 13 + [2] * 10, "focal"), group)
    (features, _, _), target, _ = batch()
    mine = share(SAMPLES, rank, ranks)
    loss = head(features.detach()[mine], target[mine])
    loss.backward()
    drawn = FusedLinearLoss(5, ClassBalancedLoss([3] * CLASSES), group=group)
    return loss.detach(), head.classes, head.linear.weight.grad, head.linear.bias.grad, drawn.linear.weight.detach()


def data_parallel(rank, ranks, group):
    """Gradients of a network under DistributedDataParallel before a head that is split, as the documentation has it."""
    torch.manual_seed(1)
    backbone = DistributedDataParallel(nn.Linear(5, 5).double())
    (inputs, weight, bias), target, _ = batch()
    mine, own = share(SAMPLES, rank, ranks), share(CLASSES, rank, ranks)
    features = backbone(inputs.detach()[mine])
    features.register_hook(lambda gradient: gradient * ranks)
    CASES[0](features, weight[own], target[mine], bias=bias[own], group=group).backward()
    return backbone.module.weight.grad


def refused(rank, ranks, group):
    """What gradients of gradients say."""
    (features, weight, _), target, _ = batch()
    mine, own = share(SAMPLES, rank, ranks), share(CLASSES, rank, ranks)
    loss = CASES[0](features[mine], weight[own], target[mine], group=group)
    try:
        torch.autograd.grad(loss, features, create_graph=True)
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
