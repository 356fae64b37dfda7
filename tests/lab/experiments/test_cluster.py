"""Sweeps on a real Ray cluster, whose workers and nodes are killed."""

import contextlib
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from longtail.lab.config import ConfigError, RunOptions
from longtail.lab.data.file_cache import content_digests
from longtail.lab.experiments import ExecutorOptions, prepare, run_sweep
from longtail.lab.experiments.ray_executor import RayExecutor, _too_large
from longtail.lab.models.features import clear_features
from longtail.lab.recipes import retrained
from longtail.lab.training import RunFolder, frozen, open_data, train
from longtail.lab.training.frozen import FrozenBackbone
from tests.lab.experiments.sweeps import (
    command,
    end,
    epochs_done,
    family,
    freeze,
    small,
    starts,
    thaw,
    trained_here,
    wait_for,
    weights,
)

# Ray leaves sockets and processes to the end of the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS = [small(seed=seed, epochs=24) for seed in range(3)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return trained_here(tmp_path_factory.mktemp("reference"), CONFIGS)


def freeze_any(runs):
    """Pause the first run that has done an epoch."""
    wait_for(lambda: any(epochs_done(runs, config) for config in CONFIGS))
    return freeze(runs, next(config for config in CONFIGS if epochs_done(runs, config)))


def finished_with_kill(executor, kill):
    """Do all runs, and kill something once they are under way."""
    finished = []
    for config in CONFIGS:
        executor.submit("train", config)
    kill()
    while len(finished) < len(CONFIGS):
        finished += executor.wait(60.0)
    return finished


def test_a_run_whose_worker_is_killed_goes_on_and_each_is_finished_once(tmp_path, reference):
    with RayExecutor(ExecutorOptions(executor="ray"), RunOptions(runs=tmp_path)) as executor:
        assert executor.slots == len(os.sched_getaffinity(0))
        finished = finished_with_kill(executor, lambda: os.kill(freeze_any(tmp_path), signal.SIGKILL))
    assert [outcome.kind for _, _, outcome in finished] == ["done"] * len(CONFIGS)
    assert {config for _, config, _ in finished} == set(CONFIGS)
    assert sorted(starts(tmp_path, config) for config in CONFIGS) == [1, 1, 2]
    assert weights(tmp_path, CONFIGS) == reference


@pytest.mark.slow
def test_a_run_whose_node_is_killed_goes_on_on_another_one(tmp_path, reference):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        node = cluster.add_node(num_cpus=1)
    try:
        where = ExecutorOptions(executor="ray", address=cluster.address)
        with RayExecutor(where, RunOptions(runs=tmp_path)) as executor:
            assert executor.slots == 2
            wait = lambda: sum(epochs_done(tmp_path, config) >= 1 for config in CONFIGS) >= 2  # noqa: E731
            finished = finished_with_kill(
                executor, lambda: (wait_for(wait), cluster.remove_node(node, allow_graceful=False))
            )
    finally:
        cluster.shutdown()
    assert [outcome.kind for _, _, outcome in finished] == ["done"] * len(CONFIGS)
    assert weights(tmp_path, CONFIGS) == reference


@pytest.mark.slow
def test_a_sweep_on_a_cluster_that_is_interrupted_goes_on(tmp_path, reference):
    with RayExecutor(ExecutorOptions(executor="ray"), RunOptions(runs=tmp_path)) as executor:
        for config in CONFIGS:
            executor.submit("train", config)
        worker = freeze_any(tmp_path)
        threading.Timer(0.5, thaw, [worker]).start()
        executor.stop()
        assert not list(tmp_path.glob("*/error.json"))
        assert not all((tmp_path / config.run_id / "result.json").exists() for config in CONFIGS)
    result = run_sweep(CONFIGS, RunOptions(runs=tmp_path), ExecutorOptions(executor="ray"))
    assert set(result.done) == set(CONFIGS)
    assert weights(tmp_path, CONFIGS) == reference


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="gpus_per_run is 1, but there are 0 GPUs"):
        RayExecutor(ExecutorOptions(executor="ray", gpus_per_run=1.0), RunOptions())


def test_what_no_node_has_is_refused_whatever_all_have_together():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "memory": 1e9}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    for cpus, gpus in ((4, 0.0), (2, 1.0), (1, 0.5)):
        assert _too_large(nodes, cpus, gpus) is None
    for cpus, gpus in ((5, 0.0), (4, 1.0), (3, 0.5)):
        assert _too_large(nodes, cpus, gpus) == (
            f"cpus_per_run is {cpus} and gpus_per_run {gpus:g}, but no node of the cluster has as many: "
            "CPUs and GPUs are 4 and 0, 2 and 1"
        )
    assert "CPUs and GPUs are none" in _too_large([], 1, 0.0)


@pytest.mark.slow
def test_a_run_larger_than_every_node_does_not_wait_for_ever(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
    try:
        where = ExecutorOptions(executor="ray", address=cluster.address, cpus_per_run=2)
        with pytest.raises(ConfigError, match="cpus_per_run is 2 and gpus_per_run 0, but no node"):
            run_sweep(CONFIGS, RunOptions(runs=tmp_path), where)
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts_ends_all_of_it_at_once(tmp_path, number):
    process = command("sweep", "small", "--dataset", "cifar10", "--executor", "ray", folder=tmp_path)
    wait_for(lambda: any(is_of_ray(pid) for pid in family(process)))
    process.send_signal(number)
    began = time.monotonic()
    assert end(process) == (130, "", "interrupted\n")
    assert time.monotonic() - began < 10.0
    wait_for(lambda: not family(process), 10.0)


def is_of_ray(pid):
    with contextlib.suppress(OSError):
        return b"ray/core/src" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_clear_line(address):
    with pytest.raises(ConfigError, match=f"no Ray cluster at {address}"):
        RayExecutor(ExecutorOptions(executor="ray", address=address), RunOptions())


def test_features_are_computed_on_a_cluster_and_a_killed_worker_costs_a_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "SHARD_SIZE", 100)
    parent = trained_parent(tmp_path)
    dataset, _, config = open_data(retrained(RunFolder(parent).config(), str(parent), 2))
    options = RunOptions(runs=tmp_path / "runs")
    backbone = FrozenBackbone(config, dataset)
    kills = []

    def kill_once():
        """The first worker that has written a shard."""
        shards = list(backbone.store.folder.glob("*.safetensors"))
        if shards and not kills:
            kills.append(next((pid for pid in workers() if pid), None))
            os.kill(kills[0], signal.SIGKILL)

    with RayExecutor(ExecutorOptions(executor="ray"), options) as executor:
        wait, finished = executor.wait, []

        def killing(seconds):
            found = wait(0.01)
            finished.extend(found)
            kill_once()
            return found

        monkeypatch.setattr(executor, "wait", killing)
        prepare.prepare_features(config, dataset, options, executor)
        assert kills
        assert not backbone.missing()
        assert len(finished) == sum(-(-len(part) // 100) for part in map(distinct, (dataset.train, dataset.test)))
        monkeypatch.undo()
        executor.submit("train", config)
        ((_, _, outcome),) = executor.wait(120.0)
    assert outcome.kind == "done", outcome.message
    here = FrozenBackbone(config, dataset)
    before = here.features(dataset.test)
    clear_features()
    frozen._stores.clear()
    alone = FrozenBackbone(config, dataset)
    alone.compute(workers=0)
    torch.testing.assert_close(alone.features(dataset.test), before, rtol=1e-4, atol=1e-5)


def trained_parent(folder):
    frozen._stores.clear()
    config = small(epochs=1)
    train(config, RunOptions(runs=folder / "runs", accelerator="cpu"))
    return folder / "runs" / config.run_id


def distinct(images):
    return set(content_digests(images))


def workers():
    """Processes of Ray that do, or did, a task of ours."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::_perform_on_cluster"):
                yield int(folder.name)
