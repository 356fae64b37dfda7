"""The Ray executor: the nodes of a cluster, which share the folders of the runs and of the data."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

import torch

from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.data import data_folder
from longtail.lab.data.loaders import available_cores
from longtail.lab.experiments.executor import ExecutorOptions, Finished
from longtail.lab.experiments.local import ATTEMPTS, STOP_SECONDS
from longtail.lab.experiments.task import Outcome, Task, perform
from longtail.lab.training import RunFolder

__all__ = ["RayExecutor"]

CONNECT_SECONDS = 10.0


class RayExecutor:
    """A Ray cluster, one that runs already or one of this machine; a run whose worker or node dies goes on in another.

    Args:
        where: address, and CPUs and GPUs of a run.
        options: of the runs.

    Example:
        >>> with RayExecutor(ExecutorOptions(executor="ray"), RunOptions()) as executor:  # doctest: +SKIP
        ...     executor.submit("train", config)
        ...     executor.wait(3600.0)
    """

    def __init__(self, where: ExecutorOptions, options: RunOptions) -> None:
        # Without a word about how usage is counted: nothing is sent anywhere.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ModuleNotFoundError:
            raise ConfigError("ray is missing: pip install 'longtail[cluster]'") from None
        self.ray: Any = ray
        self.cpus = where.cpus_per_run if where.address else min(where.cpus_per_run, available_cores())
        self.gpus = where.gpus_per_run or 0.0
        if where.address is None and self.gpus > torch.cuda.device_count():
            raise ConfigError(f"gpus_per_run is {self.gpus:g}, but there are {torch.cuda.device_count()} GPUs to use")
        workers = self.cpus if options.workers is None else options.workers
        self.options = dataclasses.replace(
            options,
            # Workers live in other folders, and may be on other machines.
            runs=options.runs.absolute(),
            data_dir=data_folder(options.data_dir).absolute(),
            workers=workers,
            accelerator=options.accelerator if self.gpus or options.accelerator != "auto" else "cpu",
        )
        self.pending: dict[Any, tuple[Task, RunConfig]] = {}
        self._connect(where.address)
        if problem := _too_large(self.ray.nodes(), self.cpus, self.gpus):
            ray.shutdown()
            raise ConfigError(problem)
        self.remote = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=ATTEMPTS - 1, max_calls=0, retry_exceptions=False
        )(_perform)

    def _connect(self, address: str | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            cores = available_cores()
            self.ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
            return
        try:
            if ":" in address:  # Ray itself would try for ten minutes
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
            self.ray.init(address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"no Ray cluster at {address}: {' '.join(str(error).split())[:200]}") from None

    @property
    def slots(self) -> int:
        """How many runs the cluster has room for, now."""
        resources = self.ray.cluster_resources()
        slots = int(resources.get("CPU", 0) // self.cpus)
        if self.gpus:
            slots = min(slots, int(resources.get("GPU", 0) // self.gpus))
        return max(1, slots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def submit(self, task: Task, config: RunConfig) -> None:
        """Do this as soon as there is room for it."""
        reference = self.remote.remote(task, config.to_json(), self.options.to_json(), self.cpus, os.getcwd())
        self.pending[reference] = (task, config)

    def wait(self, seconds: float) -> list[Finished]:
        """What was finished since the last call, as soon as there is anything, or nothing after ``seconds``."""
        if not self.pending:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.pending), timeout=seconds)
        ready += self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)[0]
        return [self._finished(reference) for reference in dict.fromkeys(ready)]

    def stop(self) -> list[Finished]:
        """Let runs save where they are and leave; what was not begun is dropped."""
        for reference in self.pending:
            self.ray.cancel(reference)
        finished: list[Finished] = []
        end = time.monotonic() + STOP_SECONDS
        while self.pending and time.monotonic() < end:
            finished += self.wait(1.0)
        return finished

    def _finished(self, reference: Any) -> Finished:
        task, config = self.pending.pop(reference)
        outcome = self._outcome(reference)
        folder = RunFolder(self.options.runs / config.run_id)
        if task == "train" and outcome.kind == "failed" and folder.failure() is None:
            folder.record_failure(config, outcome.message)
        return task, config, outcome

    def _outcome(self, reference: Any) -> Outcome:
        exceptions = self.ray.exceptions
        try:
            return Outcome(**self.ray.get(reference))
        except (exceptions.TaskCancelledError, KeyboardInterrupt):
            return Outcome("interrupted", "it was cancelled")
        except exceptions.RayError as error:
            return Outcome("failed", " ".join(str(error).split())[:300])


def _too_large(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> str | None:
    """Why a run would wait for ever, if it would: it is on one node, whatever all of them have together."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    rooms = [(each.get("CPU", 0.0), each.get("GPU", 0.0)) for each in alive]
    if any(cpus <= most_cpus and gpus <= most_gpus for most_cpus, most_gpus in rooms):
        return None
    found = ", ".join(
        f"{most_cpus:g} and {most_gpus:g}" for most_cpus, most_gpus in sorted(set(rooms), reverse=True)[:3]
    )
    return (
        f"cpus_per_run is {cpus:g} and gpus_per_run {gpus:g}, but no node of the cluster has as many: "
        f"CPUs and GPUs are {found or 'none'}"
    )


def _perform(task: Task, config: str, options: str, threads: int, folder: str) -> dict[str, Any]:
    """In a worker of the cluster."""
    torch.set_num_threads(threads)
    if Path(folder).is_dir():
        os.chdir(folder)  # paths of the user's own images start there
    return dataclasses.asdict(perform(task, RunConfig.from_json(config), RunOptions.from_json(options)))
