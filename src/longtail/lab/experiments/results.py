"""Run folders as a table, one row per run, complete or not; the columns that distinguish rows; files of tables."""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd

from longtail.lab.config import LOSS_KWARGS, ConfigError, RunConfig, leaves, values_by_name
from longtail.lab.experiments.published import published
from longtail.lab.files import with_name, write_atomically
from longtail.lab.training.adjustments import Adjustment
from longtail.lab.training.checks import damage_named
from longtail.lab.training.metrics import DETAILS, rarest_quarter
from longtail.lab.training.run_folder import LOCATIONS, RunFolder

COMPARED = ("error", "balanced_accuracy", "many", "medium", "few", "rarest_quarter")
"""What is compared with the plain loss, by default."""

METRICS = (*COMPARED[:1], "error_top5", *COMPARED[1:], "macro_f1", "nll", "calibration_error", "train_loss")
"""Those that there are columns of even if no run is complete; other ones that runs have follow."""

LISTS = ("recall", "calibration")
"""Columns that are lists. The other metrics of each class, and the confusion matrix, are in ``result.json`` alone."""

DTYPES = {int: "Int64", float: "float64", bool: "boolean", tuple: "object"}
"""Of columns, by the type of the field: all of them can miss values. Other fields are text."""

OTHER = ("run_id", "status", "problem", "method", "best_error", "seconds", "published", "weights_from", "adjustment")
"""Columns that are neither of the configuration nor metrics of the last epoch."""

FILES = {".lock", "config.json", "data.json", "metrics.jsonl", "result.json", "error.json"}
FILES |= {"model.safetensors", "checkpoint.pt"}
"""A folder that holds one of them is one of a run, or of what is left of it."""


PATHS = {
    name: path
    for part in ("data", "model", "loss", "optimizer", "")  # the network and the loss before the schedule
    for name, path in leaves(RunConfig).items()
    if (path[0] == part or (not part and len(path) == 1)) and name not in LOCATIONS
}
"""Where in a configuration the value of each column is."""


def _dtype(path: Sequence[str]) -> str:
    """That of a column: all of them can miss values."""
    kind: Any = RunConfig
    for name in path:
        kind = get_type_hints(kind)[name]
        if get_origin(kind) in (Union, types.UnionType):
            (kind,) = (part for part in get_args(kind) if part is not type(None))
    return DTYPES.get(get_origin(kind) or kind, "str")


CONFIGURATION = {name: _dtype(path) for name, path in PATHS.items()}

SETTING = (
    *(name for name in CONFIGURATION if name not in ("seed", "weights", "weights_sha256")),
    "weights_from",
    "adjustment",
)
"""Columns that are the same in runs that differ by their seed alone, or by that of the run their weights are from."""


FIRST = ("data", "imbalance", "model", "epochs")
"""Those that a person looks for first."""


def load_results(runs: Path | str) -> pd.DataFrame:
    """One row for each run folder below a folder, whether the run is complete or not.

    An adjustment of a run is a row, too. Columns: ``run_id`` (the folder's name), ``status``, ``problem``,
    ``method`` (its name for people), ``published`` (the error of :func:`published`), each value of the configuration
    under its short name, ``weights_from`` (the setting that the initial weights are from, whatever its seed),
    ``adjustment``, the metrics after the last epoch, ``best_error``, ``seconds``, and ``version_…`` of what was used.
    ``status`` is one of

    - complete: the run has a result. Only these have metrics.
    - failed: a sweep gave it up; ``problem`` tells why.
    - unfinished: it is running or was interrupted; ``problem`` tells how far it is.
    - damaged: something in it cannot be read, or is not a number where there should be one; ``problem`` tells what.

    Args:
        runs: folder of run folders, or a single run folder.

    Example:
        >>> import tempfile
        >>> from longtail.lab.config import ModelConfig
        >>> config = RunConfig(model=ModelConfig(name="resnet8"))
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     write_atomically(Path(runs) / config.run_id / "config.json", config.to_json())
        ...     load_results(runs)[["method", "model", "status", "problem"]].values.tolist()
        [['softmax', 'resnet8', 'unfinished', '0 of 200 epochs']]
    """
    rows = [row for folder in _run_folders(Path(runs)) for row in _rows(folder)]
    metrics = dict.fromkeys((*METRICS, *(name for row in rows for name in row["metrics"] if name not in LISTS)))
    versions = dict.fromkeys(name for row in rows for name in row["versions"])
    dtypes = {
        "run_id": "str",
        "status": "str",
        "problem": "object",
        "method": "str",
        **CONFIGURATION,
        "weights_from": "str",
        "adjustment": "str",
    }
    dtypes |= dict.fromkeys((*metrics, "best_error", "seconds"), "float64") | dict.fromkeys(LISTS, "object")
    dtypes |= dict.fromkeys(versions, "str") | {"published": "float64"}
    values = [row | row["metrics"] | row["versions"] for row in rows]
    return pd.DataFrame({name: _column([row.get(name) for row in values], dtype) for name, dtype in dtypes.items()})


def run_folder_of(runs: Path | str, run_id: str) -> RunFolder:
    """The folder of one of the runs that :func:`load_results` found; a run folder may have been given itself."""
    path = Path(runs) / run_id
    return RunFolder(path if path.is_dir() else Path(runs))


def _run_folders(runs: Path) -> list[Path]:
    if not runs.is_dir():
        reason = "it is not a folder" if runs.exists() else "it does not exist"
        raise ConfigError(f"{runs}/ holds no runs: {reason}")
    below = sorted(path for path in runs.iterdir() if not path.name.startswith(".") and path.is_dir())
    found = [path for path in below if _is_run(path)]
    if not found and not _is_run(runs):
        searches = [path for path in (runs, *below) if (path / "journal.log").exists()]
        folder = os.path.normpath(searches[0] / ".." / "..") if searches else None
        raise ConfigError(f"{runs}/ holds no runs" + (f": those of a search are in {folder}" if folder else ""))
    return found or [runs]


def _is_run(folder: Path) -> bool:
    try:
        inside = os.listdir(folder)
        return not FILES.isdisjoint(inside) and "journal.log" not in inside  # which is of a search
    except OSError:
        return True  # what cannot be looked into is listed as damaged rather than passed over in silence


def _column(values: list[Any], dtype: str) -> pd.Series:
    try:
        return pd.Series(values, dtype=dtype)
    except OverflowError:  # a seed of more than 64 bits
        return pd.Series(values, dtype="object")


def _rows(path: Path) -> list[dict[str, Any]]:
    """A run and its adjustments."""
    run = _row(path)
    if run["status"] != "complete":
        return [run]
    slugs = sorted(file.stem for file in (path / "adjustments").glob("*.json"))
    return [run, *(_adjusted(run, path, slug) for slug in slugs)]


def _adjusted(run: dict[str, Any], path: Path, slug: str) -> dict[str, Any]:
    row = run | {"adjustment": slug, "metrics": {}, "published": None, "best_error": None, "seconds": None}
    try:
        found = RunFolder(path).adjustment(slug)
        metrics = _final_metrics(found["final"], path)
        title = Adjustment.from_content(found).title
    except (ConfigError, OSError) as error:
        return row | {"status": "damaged", "problem": _problem(error, path)}
    return row | {"method": f"{run['method']}, {title}", "metrics": metrics, "best_error": metrics["error"]}


def _row(path: Path) -> dict[str, Any]:
    """A run; what is not known of it has no key."""
    row: dict[str, Any] = {"run_id": with_name(path).name, "problem": None, "metrics": {}, "versions": {}}
    folder = RunFolder(path)
    try:
        with damage_named(folder.config_file):
            config = folder.config()
            entry = published(config)
        values = values_by_name(config)
        row |= {name: values[name] for name in PATHS}
        row |= {"method": config.title, "published": entry and entry.error}
        row["weights_from"] = _weights_from(path, config)
        result = folder.result()
        failure = folder.failure() if result is None else None
        if failure is not None:
            return row | {"status": "failed", "problem": _line(failure["error"])}
        epochs = len(folder.metrics())
        if result is not None:
            versions = {f"version_{name}": str(value) for name, value in result["versions"].items()}
            row |= {"metrics": _final_metrics(result["final"], path), "versions": versions}
            return row | {"status": "complete", "best_error": result["best_error"], "seconds": result["seconds"]}
        return row | {"status": "unfinished", "problem": f"{epochs} of {config.optimizer.epochs} epochs"}
    except (ConfigError, OSError) as error:
        return row | {"status": "damaged", "problem": _problem(error, path)}


def _problem(error: Exception, path: Path) -> str:
    """Without the name of the folder, which is in the row already."""
    return _line(str(error).replace(f"{path}{os.sep}", "").replace(f"{path} is not a run folder: it", "it"))


def _weights_from(path: Path, config: RunConfig) -> str | None:
    """Which setting the initial weights are from, whatever its seed; the name of the run or file if it is gone."""
    if config.model.weights is None:
        return None
    try:
        return RunFolder(path.parent / config.model.weights).config().setting_id
    except ConfigError:
        return config.model.weights


def _final_metrics(final: dict[str, Any], path: Path) -> dict[str, Any]:
    # Not of the run as a whole: the seconds of the last epoch, its learning rate.
    left_out = {*CONFIGURATION, *OTHER, "epoch", *DETAILS}
    metrics = {name: value for name, value in final.items() if name not in left_out}
    return metrics if "rarest_quarter" in metrics else metrics | {"rarest_quarter": _rarest_quarter(final, path)}


def _rarest_quarter(final: dict[str, Any], path: Path) -> float | None:
    """Of a run that did not keep it, from the recall of its classes."""
    try:
        counts = np.array(RunFolder(path).data()["train_counts"])
    except ConfigError:
        return None
    recall = final.get("recall") or []
    if len(recall) != len(counts):
        return None
    known = [value for value, rare in zip(recall, rarest_quarter(counts), strict=True) if rare and value is not None]
    return sum(known) / len(known) if known else None


def _line(text: object) -> str:
    return " ".join(str(text).split())


def to_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON has them; what is missing, or no number that JSON has, is None.

    Example:
        >>> to_records(pd.DataFrame({"beta": [0.9, None], "recall": [[0.5, None], None]}))
        [{'beta': 0.9, 'recall': [0.5, None]}, {'beta': None, 'recall': None}]
    """
    names = list(frame.columns)
    columns = [[_plain(value) for value in frame[name].tolist()] for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def row_key(row: dict[str, Any], columns: Sequence[str]) -> str:
    """The key that rows of :func:`to_records` share if they agree in some columns."""
    return json.dumps([row[name] for name in columns])


def telling_columns(rows: list[dict[str, Any]], shown: Sequence[str], columns: Sequence[str] = SETTING) -> list[str]:
    """Columns that, with those ``shown`` and the name of the loss, distinguish rows of :func:`to_records`.

    Example:
        >>> rows = [{"method": "softmax", "data": "digits", "batch_size": size} for size in (32, 64)]
        >>> telling_columns(rows, ["data"], ["data", "batch_size"])
        ['data', 'batch_size']
    """
    told = list(shown)
    for name in sorted(columns, key="fingerprint".__eq__):  # last: whatever else tells them apart is readable
        if name in (*FIRST, "loss", "weighting", "beta", *LOSS_KWARGS):  # the name of the loss says the latter
            continue
        kinds = {row_key(row, [*told, "method"]) for row in rows}
        if len({row_key(row, [*told, "method", name]) for row in rows}) > len(kinds):
            told.append(name)
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)) else value


def write_results(frame: pd.DataFrame, path: Path | str) -> None:
    """Write a table of runs to a .csv or .json file; lists in CSV are JSON text."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".csv", ".json"):
        known = f"ends in {path.suffix}" if path.suffix else "has no ending"
        raise ConfigError(f"{path} {known}: results are written as .csv or .json")
    if ending == ".json":
        text = json.dumps(to_records(frame), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        texts = {
            name: [json.dumps(_plain(value)) if isinstance(value, (list, tuple)) else None for value in frame[name]]
            for name in (*LISTS, "milestones", "betas")
            if name in frame.columns
        }
        text = frame.assign(**texts).to_csv(index=False, lineterminator="\n")
    write_atomically(path, text)


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
