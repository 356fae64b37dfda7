"""``longtail sweep``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail._checks import check_choice
from longtail.lab.cli.output import AsJson, console, print_json, progress
from longtail.lab.cli.results import show_results
from longtail.lab.config import ConfigError, RunConfig, RunOptions
from longtail.lab.experiments import (
    SWEEPS,
    ExecutorOptions,
    estimate,
    load_results,
    read_sweep,
    rescaled,
    run_sweep,
)
from longtail.lab.experiments.sweep import complete_runs, duration
from longtail.lab.training import TrainingError

__all__ = ["sweep_command"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The paper's runs at another scale; without these, at its own."""

    dataset: str | None = None
    """One of those that --list names for the sweep."""
    epochs: int | None = None
    """Of each run; the schedule is stretched with them."""
    model: str | None = None
    """The network of all runs."""
    batch_size: int | None = None
    """Images of a step; the learning rate goes with it."""
    seeds: int | None = None
    """Each run is done with so many seeds, from 0 on: by default 1, of the sweep small 2."""


def sweep_command(
    name: Positional[
        Annotated[str | None, arg(metavar="NAME|FILE", help="A table or figure of the paper, or a sweep file.")]
    ] = None,
    scale: Annotated[Scale, OmitArgPrefixes] = Scale(),
    running: Annotated[RunOptions, OmitArgPrefixes] = RunOptions(),
    where: Annotated[ExecutorOptions, OmitArgPrefixes] = ExecutorOptions(),
    dry_run: Annotated[bool, arg(help="List the runs, measure a few steps, and say how long all would take.")] = False,
    list_: Annotated[bool, arg(name="list", help="List the sweeps of the paper.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do all runs of a table or figure of the paper, or of a sweep of your own; those that are complete are left alone.

    A sweep file is JSON with the flags of longtail train as keys: a list is swept over, anything else is the same in
    all runs: {"data": "digits", "imbalance": [10, 50], "loss": ["softmax", "focal"], "epochs": 40, "seed": [0, 1]}.

    Example: longtail sweep heatmap --dataset cifar10 --epochs 30 --model resnet8 --seeds 3
    """
    if list_:
        _list(as_json)
        return
    configs = _configs(name, scale)
    if dry_run:
        _preview(configs, running, where, as_json)
        return
    result = run_sweep(configs, running, where, progress())
    _show(configs, running, as_json)
    if result.failed:
        first, reason = next(iter(result.failed.items()))
        raise TrainingError(f"{len(result.failed)} of {len(configs)} runs failed, such as {first.run_id}: {reason}")


def _list(as_json: bool) -> None:
    if as_json:
        print_json({name: {"datasets": sweep.datasets, "about": sweep.about} for name, sweep in SWEEPS.items()})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "runs", "--dataset", "what"):
        table.add_column(title, justify="right" if title == "runs" else "left")
    for name, sweep in SWEEPS.items():
        table.add_row(name, str(len(sweep.runs(sweep.datasets[0]))), " ".join(sweep.datasets), sweep.about)
    console().print(table)


def _configs(name: str | None, scale: Scale) -> list[RunConfig]:
    if name is None:
        raise ConfigError(f"which sweep? {', '.join(SWEEPS)}, or a .json or .py file; --list says more")
    flags = asdict(scale)
    if name.endswith((".json", ".py")):
        if idle := [flag for flag, value in flags.items() if value != getattr(Scale, flag)]:
            raise ConfigError(f"{idle[0]} would do nothing: {name} says it all")
        return read_sweep(Path(name))
    check_choice("sweep", name, tuple(SWEEPS))
    dataset = flags.pop("dataset")
    if dataset is None:
        raise ConfigError(f"{name} needs a --dataset: {', '.join(SWEEPS[name].datasets)}")
    flags["seeds"] = SWEEPS[name].seeds if scale.seeds is None else scale.seeds
    return rescaled(SWEEPS[name].runs(dataset), **flags)


def _preview(configs: list[RunConfig], options: RunOptions, where: ExecutorOptions, as_json: bool) -> None:
    complete = set(complete_runs(configs, options))
    missing = [config for config in configs if config not in complete]
    progress().print("measuring …")
    seconds, slots = estimate(missing, options, where)
    total = sum(seconds.values()) / slots
    if as_json:
        runs = [{"run_id": config.run_id, "seconds": seconds.get(config, 0.0)} for config in configs]
        print_json({"runs": runs, "at_a_time": slots, "seconds": total})
        return
    out = console()
    for config in configs:
        left = duration(seconds[config]) if config in seconds else "complete"
        out.print(f"{config.run_id}  {left}", soft_wrap=True)
    out.print()
    out.print(f"{len(configs)} runs, {len(missing)} to do, {slots} at a time: about {duration(total)}")


def _show(configs: list[RunConfig], options: RunOptions, as_json: bool) -> None:
    names = {config.run_id for config in configs}
    frame = load_results(options.runs)
    show_results(frame[frame["run_id"].isin(names)], as_json=as_json)
