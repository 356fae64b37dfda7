"""Small runs in processes of their own, which can be killed."""

import errno
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import torch

from longtail.lab.config import DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions
from longtail.lab.data import SubsetOptions
from longtail.lab.recipes import cifar
from longtail.lab.training import train

# One process imports everything; each training is a fork of it, and starts at once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.lab.training.runs"])


BALANCED = LossConfig(beta=0.999)


def small_config(epochs=6, imbalance=20.0, model="resnet8", seed=0, loss=BALANCED, **optimizer):
    config = cifar(DataConfig(subset=SubsetOptions(imbalance=imbalance)), loss, epochs)
    optimizer = replace(config.optimizer, **({"batch_size": 64} | optimizer))
    return replace(config, model=ModelConfig(name=model), seed=seed, optimizer=optimizer)


def _end_after(number: int, name: str | None, count: int) -> None:
    """Send this process a signal when it has replaced files of this name so often; without one, replaced or synced any.

    From inside, so that the signal comes at the same place however fast the machine is.
    """
    calls = 0

    def counted(function, is_counted):
        def call(*arguments):
            nonlocal calls
            function(*arguments)
            calls += is_counted(arguments[-1])
            if calls == count and is_counted(arguments[-1]):
                os.kill(os.getpid(), number)

        return call

    os.replace = counted(os.replace, lambda target: name in (None, Path(target).name))
    os.fsync = counted(os.fsync, lambda _: name is None)


def _train(config, runs, checkpoint_minutes, largest_file, ending, folder):
    os.chdir(folder)
    torch.set_num_threads(1)
    if ending:
        _end_after(*ending)
    if largest_file:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    options = RunOptions(runs=Path(runs), accelerator="cpu", checkpoint_minutes=checkpoint_minutes)
    try:
        train(RunConfig.from_json(config), options)
    except Exception as error:
        Path(f"error-{os.getpid()}.txt").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(getattr(error, "exit_code", 3)) from None


def start(config, runs, checkpoint_minutes=10.0, largest_file=None, ending=None):
    """A process that trains; ``ending`` is a signal, and when it comes; ``error_of`` tells what it said."""
    arguments = (config.to_json(), str(runs), checkpoint_minutes, largest_file, ending, str(runs.parent))
    process = PROCESSES.Process(target=_train, args=arguments)
    process.start()
    return process


def finish(process):
    process.join(600)
    assert process.exitcode is not None
    return process.exitcode


def error_of(process, runs):
    return (runs.parent / f"error-{process.pid}.txt").read_text()


def no_room_for(monkeypatch, name):
    """The disk is full when a file of this name is written."""
    sync = os.fsync

    def full(descriptor):
        if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
