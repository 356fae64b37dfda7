"""Run folders without what is large: the records behind a table, small enough to be kept with it."""

from __future__ import annotations

import json
from pathlib import Path

from longtail.lab.config import ConfigError
from longtail.lab.experiments.results import load_results, run_folder_of
from longtail.lab.files import write_atomically
from longtail.lab.training.run_folder import RunFolder

__all__ = ["keep_records"]


def keep_records(runs: Path | str, folder: Path | str) -> int:
    """Copy what was asked for and what came out of each complete run, and return how many there are.

    A record is a run folder without weights, checkpoints and TensorBoard's events, and of the chosen images it has the
    hash alone: all that reads results reads records, too.

    Args:
        runs: folder of run folders.
        folder: where to; a record that is there already is replaced.

    Example:
        >>> keep_records("nowhere", "records")
        Traceback (most recent call last):
        longtail.lab.config.errors.ConfigError: nowhere/ holds no runs: it does not exist
    """
    runs, folder = Path(runs), Path(folder)
    frame = load_results(runs)
    complete = frame[frame["status"] == "complete"]["run_id"].unique().tolist()  # with adjustments, more than once
    for run_id in complete:
        if run_folder_of(runs, run_id).path.resolve() == (folder / run_id).resolve():
            raise ConfigError(f"records of {runs}/ cannot be kept in the same folder")
    for run_id in complete:
        run = run_folder_of(runs, run_id)
        record = RunFolder(folder / run_id)
        data = {name: value for name, value in run.data().items() if name not in ("indices", "locations")}
        write_atomically(record.config_file, run.config_file.read_bytes())
        write_atomically(record.data_file, json.dumps(data, ensure_ascii=False) + "\n")
        write_atomically(record.metrics_file, run.metrics_file.read_bytes())
        for path in sorted((run.path / "adjustments").glob("*.json")):
            write_atomically(record.path / "adjustments" / path.name, path.read_bytes())
        # Last, as in the run itself: a record that has one is whole.
        write_atomically(record.result_file, run.result_file.read_bytes())
    return len(complete)
