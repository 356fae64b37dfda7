"""Small sweeps, in processes of their own, which can be killed."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from longtail.lab.config import DataConfig, LossConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar
from longtail.lab.training import RunFolder, train

PLAIN, BALANCED = LossConfig(weighting="uniform"), LossConfig(beta=0.999)


def small(loss=BALANCED, seed=0, epochs=3, **optimizer):
    config = cifar(DataConfig(subset=SubsetOptions(imbalance=20.0)), loss, epochs)
    return replace(
        config, model="resnet8", seed=seed, optimizer=replace(config.optimizer, **({"batch_size": 64} | optimizer))
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


def start_method():
    """How processes start others."""
    return multiprocessing.get_start_method()


def write_images(folder, images=6):
    """Two classes of image files, JPEG and PNG."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(images):
            pixels = draw.integers(100 * label, 100 * label + 100, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{('jpg', 'png')[number % 2]}")
    return folder


def command(*words, folder):
    """A command of longtail, in a process of its own."""
    return start(Path(sys.executable).with_name("longtail"), *words, folder=folder)


def start(*words, folder):
    """A process that is in a group of its own, and is marked like all that it starts."""
    mark = f"LONGTAIL_TEST_{time.monotonic_ns()}"
    process = subprocess.Popen(
        list(map(str, words)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONWARNINGS": "default", mark: ""},
    )
    process.mark = mark
    return process


def family(process):
    """What a process has started, and what that has started, as far as it is alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return sorted({*found} - {process.pid})


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


def trainer(runs, config):
    """The process that trains a run, which has the lock of its folder."""
    lock = str((runs / config.run_id / ".lock").resolve())
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) == lock:
                return int(descriptor.parts[2])
    return None


def freeze(runs, config):
    """Pause a run after its first epoch: no machine is too fast to catch it."""
    wait_for(lambda: epochs_done(runs, config) >= 1)
    process = trainer(runs, config)
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    return process


def thaw(process):
    """Let a process go on that was frozen, if it is alive."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def is_asked_to_stop(process):
    """Whether a frozen process has a signal to answer, or was killed since."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
    pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)
