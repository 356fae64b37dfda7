"""Small sweeps, in processes of their own, which can be killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar
from longtail.lab.training import RunFolder, train

PLAIN, BALANCED = LossConfig(), LossConfig(beta=0.999)


def small(loss=BALANCED, seed=0, epochs=3, **optimizer):
    config = cifar(DataConfig(subset=SubsetOptions(imbalance=20.0)), loss, epochs)
    return replace(
        config,
        model=ModelConfig(name="resnet8"),
        seed=seed,
        optimizer=replace(config.optimizer, **({"batch_size": 64} | optimizer)),
    )


def weights(runs, configs):
    """The weights of all runs, as bytes."""
    return {config.run_id: (runs / config.run_id / "model.safetensors").read_bytes() for config in configs}


def trained_here(runs, configs):
    """The weights that one thread of this process gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for config in configs:
            train(config, RunOptions(runs=runs, accelerator="cpu"))
    finally:
        torch.set_num_threads(threads)
    return weights(runs, configs)


def starts(runs, config):
    """How often the training of a run was begun: each time, TensorBoard gets a file."""
    return len(list((runs / config.run_id).glob("events.out.tfevents.*")))


def epochs_done(runs, config):
    return len(RunFolder(runs / config.run_id).metrics())


def command(*words, folder):
    """A command of longtail, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "longtail.lab", *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )


def end(process, seconds=180):
    """What it printed, and its exit code."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def wait_for(condition, seconds=300.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def processes(text):
    """Of this user, by a part of their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(int(folder.name))
    return found
