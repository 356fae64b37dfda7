"""Runs on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from concurrent import futures
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.data import data_folder
from longtail.lab.data.loaders import available_cores
from longtail.lab.experiments.executors import ATTEMPTS, STOP_SECONDS, ExecutorOptions, Finished, Job, record_failure
from longtail.lab.experiments.task import Outcome, Task, perform
from longtail.lab.files import cache_folder
from longtail.lab.training import RunFolder, stop_signals

CONNECT_SECONDS = 10.0


class RayExecutor:
    """A Ray cluster, a running one or one started here; a run whose worker or node dies resumes on another."""

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
        self.options = replace(
            options,
            # Workers live in other folders, and may be on other machines.
            runs=options.runs.absolute(),
            data_dir=data_folder(options.data_dir).absolute(),
            workers=workers,
            accelerator=options.accelerator if self.gpus or options.accelerator != "auto" else "cpu",
        )
        self.pending: dict[Any, Job] = {}
        self.thread = futures.ThreadPoolExecutor(1)  # Ray's processes live as long as the thread that started them
        self._connect(where.address)
        if problem := _too_large(self.ray.nodes(), self.cpus, self.gpus):
            ray.shutdown()
            raise ConfigError(problem)
        self.remote = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=ATTEMPTS - 1, max_calls=0, retry_exceptions=False
        )(_perform_on_cluster)

    def _connect(self, address: str | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        logging.getLogger("ray").setLevel(logging.ERROR)
        if address is None:
            problem = "Ray does not start"
            start = partial(self.ray.init, "local", num_cpus=available_cores(), include_dashboard=False, **quiet)
        else:
            problem = f"no Ray cluster at {address}"
            start = partial(self.ray.init, address, **quiet)
        try:
            if address is not None and ":" in address:  # Ray itself would try for ten minutes
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
            # An exception of a signal in the middle of its start can crash Ray, and only outside of the main thread it
            # leaves SIGTERM alone.
            with stop_signals() as stop:
                others, started = _descendants(), self.thread.submit(start)
                while not (started.done() or stop.requested):
                    futures.wait([started], 0.2)
            if stop.requested:  # the rest of its start could take half a minute
                for pid in _descendants():
                    if pid not in others:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                raise KeyboardInterrupt
            started.result()
        except Exception as error:
            raise ConfigError(f"{problem}: {' '.join(str(error).split())[:200]}") from None

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
        self.thread.shutdown()

    def submit(self, task: Task, config: RunConfig) -> None:
        """Start this task as soon as a slot is free."""
        reference = self.remote.remote(task, config, self.options, self.cpus, os.getcwd(), str(cache_folder().parent))
        self.pending[reference] = (task, config)

    def wait(self, seconds: float) -> list[Finished]:
        """Tasks that finished since the last call: waits for one, but at most ``seconds``."""
        if not self.pending:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.pending), timeout=seconds)
        ready += self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)[0]
        return [self._finished(reference) for reference in dict.fromkeys(ready)]

    def stop(self) -> None:
        """Ask runs to save and stop, and wait a while for them; tasks that have not started are dropped."""
        for reference in self.pending:
            self.ray.cancel(reference)
        end = time.monotonic() + STOP_SECONDS
        while self.pending and (left := end - time.monotonic()) > 0:
            self.wait(left)

    def _finished(self, reference: Any) -> Finished:
        task, config = self.pending.pop(reference)
        outcome = self._outcome(reference)
        if outcome.kind == "failed" and RunFolder(self.options.runs / config.run_id).failure() is None:
            record_failure(task, config, self.options, outcome)
        return task, config, outcome

    def _outcome(self, reference: Any) -> Outcome:
        exceptions = self.ray.exceptions
        try:
            outcome: Outcome = self.ray.get(reference)
        except (exceptions.TaskCancelledError, KeyboardInterrupt):
            return Outcome("interrupted", "it was cancelled")
        except exceptions.RayError as error:
            return Outcome("failed", " ".join(str(error).split())[:300])
        return outcome


def _descendants() -> list[int]:
    """Processes that this one has started, and those that they have, as far as the system tells."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(file.parent.name))
    found = children.get(os.getpid(), [])
    for pid in found:
        found += children.get(pid, [])
    return found


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


def _perform_on_cluster(
    task: Task, config: RunConfig, options: RunOptions, threads: int, folder: str, cache: str
) -> Outcome:
    """In a worker of the cluster."""
    torch.set_num_threads(threads)
    os.environ["XDG_CACHE_HOME"] = cache  # features are computed for all workers
    if Path(folder).is_dir():
        os.chdir(folder)  # paths of the user's own images start there
    return perform(task, config, options)
