"""What several processes do together, seen from one of them."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from longtail.lab.config import ConfigError, RunConfig
from longtail.lab.training.checkpoint import State
from longtail.lab.training.metrics import ClassifierMetrics
from longtail.lab.training.processes import AGREE_EVERY, Stop, make_fabric, opened_by_first, total
from longtail.lab.training.run_folder import RunFolder


class TwoAlike:
    """The fabric of one of two processes with the same values; sums work in place, as with gloo."""

    world_size, is_global_zero, device = 2, True, torch.device("cpu")
    strategy = SimpleNamespace(precision=SimpleNamespace(state_dict=dict, load_state_dict=lambda _: None))

    def __init__(self):
        self.sums = self.broadcasts = 0

    def all_reduce(self, value, reduce_op):
        self.sums += 1
        return value.mul_(2) if reduce_op == "sum" else value

    def broadcast(self, value):
        self.broadcasts += 1
        return value


def test_a_sum_over_processes_leaves_what_it_is_given():
    value = torch.tensor([1.0, 2.0])
    assert total(TwoAlike(), value).tolist() == [2, 4]
    assert value.tolist() == [1, 2]


def test_a_checkpoint_in_an_epoch_does_not_change_its_loss():
    state, fabric = State(torch.device("cpu")), TwoAlike()
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    state.add(torch.tensor(3.0))
    for _ in range(3):
        assert state.content(network, optimizer, fabric)["loss"] == 6
    state.add(torch.tensor(1.0))
    assert total(fabric, state.end_epoch()) == 8


def test_only_the_first_process_goes_on_with_the_loss_of_all():
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    state, fabric = State(torch.device("cpu")), TwoAlike()
    state.add(torch.tensor(3.0))
    content = state.content(network, optimizer, fabric)
    losses = []
    for first in (True, False):
        fabric.is_global_zero = first
        again = State(torch.device("cpu"))
        again.restore(content, network, optimizer, fabric)
        losses.append(again.loss.item())
    assert losses == [6, 0]


@pytest.mark.parametrize("steps", [1, 3, 7, 9])
def test_processes_agree_to_stop_also_where_epochs_are_short(steps):
    stop, fabric = Stop(), TwoAlike()
    stop.requested = True
    calls = 0
    for _ in range(2 * AGREE_EVERY):
        for _ in range(steps):
            calls += 1
            if stop.agreed(fabric):
                assert calls == AGREE_EVERY
                assert fabric.sums == 1
                return
    pytest.fail("they never agreed")


def test_nobody_stops_while_nobody_was_asked_to():
    stop, fabric = Stop(), TwoAlike()
    assert not any(stop.agreed(fabric) for _ in range(5 * AGREE_EVERY))
    assert fabric.sums == 5


def test_one_process_alone_stops_at_once():
    stop, alone = Stop(), SimpleNamespace(world_size=1)
    assert not stop.agreed(alone)
    stop.requested = True
    assert stop.agreed(alone)


def test_the_first_process_decides_when_to_save():
    state, fabric, due = State(torch.device("cpu")), TwoAlike(), []
    for state.step in range(1, 41):
        due += [state.step] * state.is_save_due(fabric, minutes=0)
    assert due == [10, 20, 30, 40]
    assert fabric.broadcasts == 4


def test_metrics_are_summed_once():
    metrics = ClassifierMetrics(torch.tensor([3, 3]).numpy(), "softmax")
    metrics.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    fabric = TwoAlike()
    assert metrics.compute(lambda sums: total(fabric, sums))["error"] == 50
    assert metrics.total.tolist() == [4, 0]
    assert fabric.sums == 1


GATHERING = """
import json, sys
import numpy as np, torch
from functools import partial
from longtail.lab.config import RunConfig
from longtail.lab.training.metrics import ClassifierMetrics
from longtail.lab.training.processes import gathered, make_fabric, total

fabric = make_fabric(RunConfig(), "cpu")
generator = torch.Generator().manual_seed(0)
labels, logits = torch.randint(0, 5, (31,), generator=generator), torch.randn(31, 5, generator=generator)
metrics = ClassifierMetrics(np.array([9, 8, 7, 6, 5]), "softmax")
for part in (torch.arange(31).chunk(3)[fabric.global_rank::fabric.world_size]):  # 11 and 20 images, or all of them
    metrics.update(logits[part], labels[part])
found = metrics.compute(partial(total, fabric), partial(gathered, fabric))
if fabric.is_global_zero:
    print(json.dumps(found))
"""


def test_several_processes_have_the_metrics_and_the_confusion_matrix_of_one(tmp_path):
    script = tmp_path / "gathering.py"
    script.write_text(GATHERING)
    started = [[sys.executable, str(script)]]
    started += [[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]]
    one, two = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in started)
    alone, together = json.loads(one), json.loads(two)
    assert sum(images for _, _, images in alone["confusion"]) == 31
    for name in ("confusion", "recall", "precision", "f1", "macro_f1", "rarest_quarter", "recall_interval"):
        assert together[name] == alone[name]


def test_a_folder_that_the_first_process_cannot_have_ends_all_of_them(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    fabric = TwoAlike()
    with (
        pytest.raises(ConfigError, match="holds something other than a run"),
        opened_by_first(RunFolder(tmp_path), RunConfig(), fabric),
    ):
        pass
    assert fabric.broadcasts == 1


def test_a_folder_that_the_disk_refuses_ends_all_of_them(tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    fabric = TwoAlike()
    with pytest.raises(OSError, match="runs"), opened_by_first(RunFolder(tmp_path / "runs" / "a"), RunConfig(), fabric):
        pass
    assert fabric.broadcasts == 1


LEAVING = """
import atexit

from torch import distributed

atexit.register(lambda: print("in " if distributed.is_initialized() else "left ", end=""))

from longtail.lab.config import RunConfig
from longtail.lab.training.processes import make_fabric

make_fabric(RunConfig(), "cpu").barrier()
"""


def test_processes_leave_their_group_before_python_ends(tmp_path):
    """The threads of gloo that still hold a tensor then would abort a process that has done all of its work."""
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["left"] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_an_accelerator_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError, match="accelerator cuda cannot be used") as error:
        make_fabric(RunConfig(), "cuda")
    assert "\n" not in str(error.value)
