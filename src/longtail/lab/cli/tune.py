"""``longtail tune``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from longtail.lab.cli.arguments import (
    AsJson,
    DryRun,
    RunningArguments,
    SetupArguments,
    resolve,
    run_options,
)
from longtail.lab.cli.output import console, progress
from longtail.lab.cli.plain import print_json
from longtail.lab.cli.train import finetuning_advice
from longtail.lab.config import LossConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS
from longtail.lab.experiments import ExecutorOptions, SearchOptions, TuneResult, estimate_tuning, tune
from longtail.lab.report.tables import Table, candidate_table


def tune_command(
    setup: Annotated[SetupArguments, OmitArgPrefixes] = SetupArguments(),
    folds: Annotated[int | None, arg(help="Number of cross-validation folds; 5 by default.")] = None,
    search: Annotated[SearchOptions, OmitArgPrefixes] = SearchOptions(),
    defer_reweighting: Annotated[
        float | None,
        arg(
            help="Fraction of training after which class weights start, in all class-balanced losses.",
            metavar="FRACTION",
        ),
    ] = None,
    running: Annotated[RunningArguments, OmitArgPrefixes] = RunningArguments(),
    executor: Annotated[ExecutorOptions, OmitArgPrefixes] = ExecutorOptions(),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find the best loss, β and γ for your data by cross-validation, and train with it.

    Each loss is trained on all folds of the training images but one and scored on that one by balanced accuracy. The
    best one is then trained on all of them and tested once. Run the same command again to resume; several processes
    with the same command share the work.

    Example: longtail tune --data digits --imbalance 50 --model resnet8 --epochs 40 --batch-size 32
    """

    def configure(loss: LossConfig) -> RunConfig:
        if defer_reweighting is not None and not loss.is_plain:
            loss = replace(loss, defer_reweighting=defer_reweighting)
        config = resolve(setup, loss=loss)
        if folds is None:
            return config
        return replace(config, data=replace(config.data, fold=replace(config.data.fold, folds=folds)))

    options = run_options(setup, **vars(running))
    if dry_run:
        seconds = estimate_tuning(configure, search, options, executor, progress())
        if as_json:
            print_json({"seconds": seconds})
        return
    result = tune(configure, search, options, executor, progress())
    content = json.loads((result.folder / "result.json").read_text(encoding="utf-8"))
    if as_json:
        print_json(content)
    else:
        _show(result, candidate_table(content["candidates"]), options)


def _show(result: TuneResult, table: Table, options: RunOptions) -> None:
    out = console()
    out.print(table.to_rich(out.width))
    best, *others = result.candidates
    ties = sum(each.state == "complete" and each.mean == best.mean for each in others)
    groups = [name for name in GROUPS if any(column.name == f"{name} %" for column in table.columns)]
    test = result.test
    recalls = ", ".join(f"{name} {test[name]:.1%}" for name in GROUPS if test[name] is not None)
    out.print()
    out.print(
        f"{', '.join(groups)}: mean recall of classes with that many training images; ± over the folds",
        f"{result.runs} of {result.grid_runs} folds were trained",
        *([f"{ties} more with the same balanced accuracy: these images cannot tell which is best"] if ties else []),
        f"{result.winner.loss.title}, trained on all training images and tested once: error {test['error']:.2f}%, "
        f"balanced accuracy {test['balanced_accuracy']:.1%} ({recalls})",
        f"its model is in {options.runs / result.winner.run_id}: longtail evaluate, predict, adjust and export take it",
        f"the search is in {result.folder}",
        *finetuning_advice(result.winner, test, options),
    )
