"""A process that does tasks: one JSON line in, one JSON line out, until the input ends."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from typing import TextIO

__all__ = ["main"]


def main() -> None:
    """Do the tasks of standard input; its end, even in the middle of a run, is the end of this process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch

    from longtail.lab.config import RunConfig, RunOptions
    from longtail.lab.experiments.task import perform

    options = RunOptions.from_json(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))

    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    # Not sys.stdin: a forked process that reads images closes it, and would wait for the lock of whoever reads it.
    requests, sys.stdin = os.fdopen(os.dup(0), encoding="utf-8"), open(os.devnull)  # noqa: SIM115
    threading.Thread(target=_read, args=(requests, tasks), daemon=True).start()
    while (line := tasks.get()) is not None:
        request = json.loads(line)
        outcome = perform(request["task"], RunConfig.from_json(request["config"]), options)
        answers.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        answers.flush()
        if outcome.kind == "interrupted":
            return


def _read(requests: TextIO, tasks: queue.SimpleQueue[str | None]) -> None:
    for line in requests:
        tasks.put(line)
    # Whoever gave the tasks is gone: a run saves where it is, and leaves.
    tasks.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
