"""The local executor: worker processes, each with its share of the threads and GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import IO, Self

import torch

from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.data.loaders import available_cores
from longtail.lab.experiments.executor import ExecutorOptions, Finished
from longtail.lab.experiments.task import Outcome, Task
from longtail.lab.training import RunFolder

__all__ = ["ATTEMPTS", "LocalExecutor"]

ATTEMPTS = 3
"""How often a run is tried whose process dies; one that ends with an error is tried once."""

STOP_SECONDS = 60.0


class LocalExecutor:
    """Worker processes of this machine; a run whose process dies goes on in another one.

    Args:
        where: threads and GPUs of a run.
        options: of the runs.

    Example:
        >>> with LocalExecutor(ExecutorOptions(cpus_per_run=10_000), RunOptions()) as executor:
        ...     executor.slots
        1
    """

    def __init__(self, where: ExecutorOptions, options: RunOptions) -> None:
        gpus = torch.cuda.device_count() if options.accelerator in ("auto", "cuda") else 0
        wanted = min(1, gpus) if where.gpus_per_run is None else where.gpus_per_run
        if wanted > gpus:
            raise ConfigError(f"gpus_per_run is {wanted:g}, but there are {gpus} GPUs to use")
        self.threads = min(where.cpus_per_run, available_cores())
        self.slots = max(1, available_cores() // self.threads)
        self.runs_per_gpu = int(1 / wanted) if wanted else 0
        if wanted:
            self.slots = min(self.slots, gpus * self.runs_per_gpu)
        workers = where.cpus_per_run if options.workers is None else options.workers
        self.options = replace(options, workers=workers, accelerator=options.accelerator if wanted else "cpu")
        self.queue: deque[tuple[Task, RunConfig]] = deque()
        self.deaths: Counter[str] = Counter()
        self.workers: dict[int, _Worker] = {}
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.end_input()
        for worker in self.workers.values():
            worker.close()
        self.selector.close()

    def submit(self, task: Task, config: RunConfig) -> None:
        """Do this as soon as there is room for it."""
        self.queue.append((task, config))
        self._fill()

    def wait(self, seconds: float) -> list[Finished]:
        """What was finished since the last call, as soon as there is anything, or nothing after ``seconds``."""
        end = time.monotonic() + seconds
        finished: list[Finished] = []
        while not finished:
            ready = self.selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                break
            finished += self._collect(key.data for key, _ in ready)
            self._fill()
        return finished

    def stop(self) -> list[Finished]:
        """Let runs save where they are and leave; what was not begun is dropped."""
        self.queue.clear()
        for worker in self.workers.values():
            worker.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        finished: list[Finished] = []
        while self.workers and (ready := self.selector.select(max(0.0, end - time.monotonic()))):
            finished += self._collect((key.data for key, _ in ready), retry=False)
        for worker in self.workers.values():
            worker.process.kill()  # it does not answer
        return finished

    def _fill(self) -> None:
        while self.queue:
            idle = next((worker for worker in self.workers.values() if worker.job is None), None)
            if idle is None and len(self.workers) < self.slots:
                slot = next(number for number in range(self.slots) if number not in self.workers)
                idle = self.workers[slot] = _Worker(slot, self.threads, self.options, self.runs_per_gpu)
                self.selector.register(idle.answers, selectors.EVENT_READ, idle)
            if idle is None:
                return
            idle.give(*self.queue.popleft())

    def _collect(self, workers: Iterable[_Worker], retry: bool = True) -> list[Finished]:
        finished: list[Finished] = []
        for worker in workers:
            answer, job = worker.answers.readline(), worker.job
            if answer.endswith(b"\n") and job:  # half a line is the last word of one that was killed
                worker.job = None
                finished.append((*job, Outcome(**json.loads(answer))))
                continue
            self.selector.unregister(worker.answers)
            del self.workers[worker.slot]
            reason = worker.close()
            if job and not retry:
                finished.append((*job, Outcome("interrupted", "it had not begun to train")))
            elif job:
                finished += self._died(*job, reason)
        return finished

    def _died(self, task: Task, config: RunConfig, reason: str) -> list[Finished]:
        self.deaths[config.run_id] += 1
        if self.deaths[config.run_id] < ATTEMPTS:
            self.queue.appendleft((task, config))
            return []
        message = f"its process died {ATTEMPTS} times: {reason}"
        if task == "train":
            RunFolder(self.options.runs / config.run_id).record_failure(config, message)
        return [(task, config, Outcome("failed", message))]


class _Worker:
    """A process, and the task it is at."""

    def __init__(self, slot: int, threads: int, options: RunOptions, runs_per_gpu: int) -> None:
        self.slot = slot
        self.job: tuple[Task, RunConfig] | None = None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        # What this process can import, and nothing from the folder it happens to be in.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        if runs_per_gpu:
            visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
            place = slot // runs_per_gpu
            environment["CUDA_VISIBLE_DEVICES"] = visible[place] if place < len(visible) and visible[0] else str(place)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "longtail.lab.experiments.worker", options.to_json(), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            # An interrupt at the keyboard is for the sweep alone, which then asks its workers to stop.
            start_new_session=True,
        )
        assert self.process.stdout
        self.answers: IO[bytes] = self.process.stdout

    def give(self, task: Task, config: RunConfig) -> None:
        """The next task; a process that is dead by now is found out when its answer is read."""
        self.job = (task, config)
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write((json.dumps({"task": task, "config": config.to_json()}) + "\n").encode())
            self.process.stdin.flush()

    def end_input(self) -> None:
        """Which asks it to save and to leave."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> str:
        """End it, and say how it ended."""
        self.end_input()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.answers.close()
        with self.errors as file:
            file.seek(0)
            last = file.read().decode(errors="replace").strip().splitlines()[-1:]
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ": ".join([ending, *last]) if code else ending
