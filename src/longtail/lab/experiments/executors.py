"""Executors: where the runs of an experiment are trained; here, in worker processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import torch

from longtail._checks import check_positive_integer
from longtail.lab.config import ConfigError, RunConfig, RunOptions, config_errors
from longtail.lab.data.loaders import available_cores
from longtail.lab.experiments.task import Outcome, Task, perform
from longtail.lab.training import RunFolder

Job = tuple[Task, RunConfig]
Finished = tuple[Task, RunConfig, Outcome]

ATTEMPTS = 3
"""How often a run is tried whose process dies; one that ends with an error is tried once."""
STOP_SECONDS = 4.0
"""How long runs may take to save and stop; then they are killed, and resume from an earlier checkpoint."""
CHECK_SECONDS = 1.0
NO_GUARD = 86
"""Exit code of a worker that would start workers, since it imports a script that does."""


class Executor(Protocol):
    """Does tasks, several at a time; used in a ``with`` statement, which ends what it started."""

    @property
    def slots(self) -> int:
        """How many tasks it does at a time."""

    def submit(self, task: Task, config: RunConfig) -> None:
        """Start this task as soon as a slot is free."""

    def wait(self, seconds: float) -> list[Finished]:
        """Tasks that finished since the last call: waits for one, but at most ``seconds``."""

    def stop(self) -> None:
        """Ask runs to save and stop, and wait a while for them; tasks that have not started are dropped."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """How many runs train at a time, and on which machines.

    Example:
        >>> ExecutorOptions(executor="local", address="auto")
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: address requires executor "ray"
    """

    executor: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster."""
    cpus_per_run: int = 1
    """Threads of each run; as many runs train at a time as there are cores for."""
    gpus_per_run: float | None = None
    """GPUs of each run, at most 1; by default 1 where there are any, and 0 on a cluster."""
    address: str | None = None
    """Address of a running Ray cluster, auto for one on this machine; by default one is started here."""

    @config_errors()
    def __post_init__(self) -> None:
        check_positive_integer("cpus_per_run", self.cpus_per_run)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ValueError(f"gpus_per_run must be from 0 to 1, got {self.gpus_per_run:g}")
        if self.address is not None and self.executor != "ray":
            raise ConfigError('address requires executor "ray"')


def make_executor(where: ExecutorOptions, options: RunOptions) -> Executor:
    """The executor that was asked for."""
    if options.devices is not None:
        raise ConfigError("devices is for a single run: those of an experiment have cpus_per_run and gpus_per_run")
    if where.executor == "local":
        return LocalExecutor(where, options)
    from longtail.lab.experiments.ray_executor import RayExecutor

    return RayExecutor(where, options)


class LocalExecutor:
    """Worker processes of this machine, reused from run to run; a run whose process dies resumes in another one."""

    def __init__(self, where: ExecutorOptions, options: RunOptions) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(NO_GUARD)  # the error is raised in the process that started this one
        gpus = torch.cuda.device_count() if options.accelerator in ("auto", "cuda") else 0
        wanted = min(1, gpus) if where.gpus_per_run is None else where.gpus_per_run
        if wanted > gpus:
            raise ConfigError(f"gpus_per_run is {wanted:g}, but there are {gpus} GPUs to use")
        threads = min(where.cpus_per_run, available_cores())
        self.slots = max(1, available_cores() // threads)
        runs_per_gpu = int(1 / wanted) if wanted else 0
        if wanted:
            self.slots = min(self.slots, gpus * runs_per_gpu)
        workers = where.cpus_per_run if options.workers is None else options.workers
        self.options = replace(options, workers=workers, accelerator=options.accelerator if wanted else "cpu")
        self.workers = [
            _Worker(threads, slot // runs_per_gpu if wanted else None) for slot in reversed(range(self.slots))
        ]
        self.idle = list(self.workers)
        self.queue: deque[Job] = deque()
        self.running: dict[futures.Future[Outcome], tuple[_Worker, Job]] = {}
        self.deaths: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.close()

    def submit(self, task: Task, config: RunConfig) -> None:
        """Start this task as soon as a slot is free."""
        self.queue.append((task, config))
        self._fill()

    def _fill(self) -> None:
        while self.queue and self.idle:
            worker, job = self.idle.pop(), self.queue.popleft()
            self.running[worker.start(*job, self.options)] = worker, job

    def wait(self, seconds: float) -> list[Finished]:
        """Tasks that finished since the last call: waits for one, but at most ``seconds``."""
        finished: list[Finished] = []
        end = time.monotonic() + seconds
        while not finished and (left := end - time.monotonic()) > 0:
            if not self.running:
                time.sleep(left)
                break
            for future in futures.wait(self.running, min(left, CHECK_SECONDS), futures.FIRST_COMPLETED).done:
                finished += self._collect(future)
            for worker, _ in self.running.values():
                if not worker.process.is_alive():
                    worker.kill()  # its loader processes: as long as they live, the pool does not notice
            self._fill()
        return finished

    def stop(self) -> None:
        """Ask runs to save and stop, and wait a while for them; tasks that have not started are dropped."""
        self.queue.clear()
        for worker, _ in self.running.values():
            worker.process.terminate()
        futures.wait(self.running, STOP_SECONDS)

    def _collect(self, future: futures.Future[Outcome]) -> list[Finished]:
        worker, (task, config) = self.running.pop(future)
        self.idle.append(worker)
        with contextlib.suppress(BrokenProcessPool):
            return [(task, config, future.result())]
        ending = worker.close()
        if worker.process.exitcode == NO_GUARD:
            raise ConfigError(
                "a script must call run_sweep and tune under `if __name__ == '__main__':`, because workers import it"
            )
        self.deaths[config.run_id] += 1
        if self.deaths[config.run_id] < ATTEMPTS:
            self.queue.appendleft((task, config))
            return []
        outcome = Outcome("failed", f"its process died {ATTEMPTS} times: {ending}")
        record_failure(task, config, self.options, outcome)
        return [(task, config, outcome)]


class _Worker:
    """A pool of one process, started at its first task; a process that died is replaced by the next task.

    One pool with several processes would give up all of their runs when one of them dies.
    """

    def __init__(self, threads: int, gpu: int | None) -> None:
        self.threads = threads
        # Read by libraries as they are imported. Nothing is imported from the folder that the process happens to be in.
        self.variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}
        if gpu is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            self.variables["CUDA_VISIBLE_DEVICES"] = visible[gpu] if visible[0] and gpu < len(visible) else str(gpu)
        self.context = _Context()
        self.pool: futures.ProcessPoolExecutor | None = None

    def start(self, task: Task, config: RunConfig, options: RunOptions) -> futures.Future[Outcome]:
        """Do this now."""
        while True:
            if not self.process.is_alive():
                self.close()  # it died when it had nothing to do
            with contextlib.suppress(BrokenProcessPool):
                return self._submit(task, config, options)

    def _submit(self, *job: Any) -> futures.Future[Outcome]:
        with _environment(self.variables):
            if self.pool is None:
                self.output, self.output_name = tempfile.mkstemp(prefix="longtail-")
                start = self.threads, multiprocessing.get_start_method(), self.output_name
                self.pool = futures.ProcessPoolExecutor(1, self.context, _enter_worker, start)
            # Ctrl-C at the keyboard is for this process alone, which then asks its workers to stop.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return self.pool.submit(_perform_in_worker, *job)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def process(self) -> SpawnProcess:
        """That of the last task."""
        return self.context.process

    def kill(self) -> None:
        """End the process, and its loader processes even if it has ended already."""
        if self.pool is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # one that is no group yet

    def close(self) -> str:
        """End the process, and say how it ended."""
        self.kill()
        if self.pool is None:
            return ""
        self.pool.shutdown(cancel_futures=True)
        self.pool = None
        Path(self.output_name).unlink(missing_ok=True)  # if the process was too short-lived to do so
        with open(self.output, "rb") as file:
            last = file.read().decode(errors="replace").strip().splitlines()[-1:]
        code = self.process.exitcode or 0
        return ": ".join([f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}", *last])


class _Context(SpawnContext):
    """Spawns the process of a pool, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.process = SpawnProcess()

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        self.process = SpawnProcess(*args, **kwargs)
        return self.process


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_busy = threading.Lock()


def _enter_worker(threads: int, start_method: str, output: str) -> None:
    """Prepare a new worker process: it forms a group with its loader processes, so that all of them end together."""
    os.setsid()
    # A process that was spawned would spawn its loader processes, too, which takes seconds for each run.
    multiprocessing.set_start_method(start_method, force=True)
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.unlink(output)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))  # unless a run handles it, and saves
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    _busy.acquire(timeout=STOP_SECONDS)  # until the run has saved
    os.killpg(0, signal.SIGKILL)


def _perform_in_worker(task: Task, config: RunConfig, options: RunOptions) -> Outcome:
    with _busy:
        return perform(task, config, options)


def record_failure(task: Task, config: RunConfig, options: RunOptions, outcome: Outcome) -> None:
    """Keep why a run failed in its folder."""
    if task == "train":
        RunFolder(options.runs / config.run_id).record_failure(config, outcome.message)
