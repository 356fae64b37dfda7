"""``longtail sweep``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail._checks import check_choice
from longtail.lab.cli.arguments import AsJson, DryRun, RunningArguments, Switch
from longtail.lab.cli.output import console, progress
from longtail.lab.cli.plain import print_json
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
from longtail.lab.experiments.sweep import complete_runs
from longtail.lab.training import TrainingError, identify
from longtail.lab.training.cost import duration


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How to scale a sweep of the paper; by default not at all."""

    dataset: str | None = None
    """Data set; --list shows those of each sweep."""
    epochs: int | None = None
    """Number of training epochs; the schedule is stretched to them."""
    model: str | None = None
    """Network of all runs."""
    batch_size: int | None = None
    """Images per step; the learning rate scales with it."""
    seeds: int | None = None
    """Number of seeds of each run; 1 by default, 2 for the sweep small."""


def sweep_command(
    name: Positional[
        Annotated[str | None, arg(metavar="NAME|FILE", help="A table or figure of the paper, or a sweep file.")]
    ] = None,
    scale: Annotated[Scale, OmitArgPrefixes] = Scale(),
    running: Annotated[RunningArguments, OmitArgPrefixes] = RunningArguments(),
    executor: Annotated[ExecutorOptions, OmitArgPrefixes] = ExecutorOptions(),
    dry_run: DryRun = False,
    list_: Annotated[Switch, arg(help="List the sweeps of the paper.", name="list")] = False,
    as_json: AsJson = False,
) -> None:
    """Train all runs of a table or figure of the paper, or of your own grid; complete runs are skipped.

    A sweep file is JSON with fields of the configuration as keys. Lists are swept over, all else is the same in all
    runs: {"data": "digits", "imbalance": [10, 50], "loss": ["softmax", "focal"], "epochs": 40, "seed": [0, 1]}.

    Example: longtail sweep heatmap --dataset cifar10 --epochs 30 --model resnet8 --seeds 3
    """
    if list_:
        _list(as_json)
        return
    configs, options = _configs(name, scale), RunOptions(**vars(running))
    if dry_run:
        preview(configs, options, executor, as_json)
        return
    run_and_show(configs, options, executor, as_json)


def run_and_show(
    configs: list[RunConfig], options: RunOptions, where: ExecutorOptions = ExecutorOptions(), as_json: bool = False
) -> None:
    """Train the runs that are not complete, and print a summary of all of them."""
    result = run_sweep(configs, options, where, progress())
    names = {config.run_id for config in (*result.done, *result.failed)}
    frame = load_results(options.runs)
    show_results(frame[frame["run_id"].isin(names)], as_json=as_json)
    if result.failed:
        first, reason = next(iter(result.failed.items()))
        raise TrainingError(f"{len(result.failed)} of {len(configs)} runs failed, such as {first.run_id}: {reason}")


def _list(as_json: bool) -> None:
    if as_json:
        print_json({name: {"datasets": sweep.datasets, "about": sweep.about} for name, sweep in SWEEPS.items()})
        return
    from longtail.lab.report.tables import text_table

    rows = [
        (name, str(len(sweep.runs(sweep.datasets[0]))), " ".join(sweep.datasets), sweep.about)
        for name, sweep in SWEEPS.items()
    ]
    console().print(text_table(("name", "runs", "--dataset", "what"), rows, numeric=("runs",)).to_rich())


def _configs(name: str | None, scale: Scale) -> list[RunConfig]:
    if name is None:
        raise ConfigError(f"name a sweep: {', '.join(SWEEPS)}, or a .json or .py file; see longtail sweep --list")
    flags = asdict(scale)
    if name.endswith((".json", ".py")):
        if idle := [flag for flag, value in flags.items() if value != getattr(Scale, flag)]:
            raise ConfigError(f"--{idle[0].replace('_', '-')} applies only to sweeps of the paper, not to {name}")
        return read_sweep(Path(name))
    check_choice("sweep", name, tuple(SWEEPS))
    dataset = flags.pop("dataset")
    if dataset is None:
        raise ConfigError(f"{name} needs a --dataset: {', '.join(SWEEPS[name].datasets)}")
    flags["seeds"] = SWEEPS[name].seeds if scale.seeds is None else scale.seeds
    return rescaled(SWEEPS[name].runs(dataset), **flags)


def preview(configs: list[RunConfig], options: RunOptions, where: ExecutorOptions, as_json: bool) -> None:
    """Print what would be trained, and how long it takes here."""
    configs = identify(configs, options.data_dir, runs=options.runs)
    complete = set(complete_runs(configs, options))
    missing = [config for config in configs if config not in complete]
    progress().print("measuring …")
    found = estimate(missing, options, where)
    if as_json:
        runs = [{"run_id": config.run_id, "seconds": found.seconds.get(config, 0.0)} for config in configs]
        times = {"at_a_time": found.slots, "features_seconds": found.features, "seconds": found.total}
        print_json({"runs": runs} | times)
        return
    out = console()
    for config in configs:
        left = duration(found.seconds[config]) if config in found.seconds else "complete"
        out.print(f"{config.run_id}  {left}")
    out.print()
    if found.features:
        out.print(f"features of the frozen backbone, computed once: about {duration(found.features)}")
    all_runs = f"{len(configs)} run{'s' if len(configs) > 1 else ''}"
    out.print(f"{all_runs}, {len(missing)} to do, {found.slots} at a time: about {duration(found.total)}")
