"""``longtail tune``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Annotated

from rich.table import Table
from tyro.conf import OmitArgPrefixes, arg

from longtail.lab.cli.output import AsJson, console, print_json, progress
from longtail.lab.cli.train import ANNEAL, DEFER, starting_point, with_loss
from longtail.lab.config import LossConfig, RunConfig, RunOptions, Setting
from longtail.lab.data import GROUPS
from longtail.lab.experiments import ExecutorOptions, SearchOptions, TuneResult, tune
from longtail.lab.recipes import train_command

__all__ = ["tune_command"]


def tune_command(arguments: Sequence[str] | None) -> Callable[..., None]:
    """The command with the defaults of the recipe that ``arguments`` name."""
    start = _setting(starting_point(arguments))

    def run(
        setting: Annotated[Setting, OmitArgPrefixes] = start,
        search: Annotated[SearchOptions, OmitArgPrefixes] = SearchOptions(),
        running: Annotated[RunOptions, OmitArgPrefixes] = RunOptions(),
        where: Annotated[ExecutorOptions, OmitArgPrefixes] = ExecutorOptions(),
        defer_reweighting: Annotated[float | None, arg(help=DEFER)] = None,
        anneal_beta: Annotated[float | None, arg(help=ANNEAL)] = None,
        recipe: Annotated[str | None, arg(help="cifar or large: where all other values start from.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Find the best loss, β and γ for your data by cross-validation, and train with it.

        Each loss is trained on all folds of the training images but one and scored on that one, by the mean recall of
        the classes; --folds is 5 if not given. The best one is then trained on all of them, and tested once. The same
        command goes on with a search that was interrupted; given several times at once, the processes share the work.

        Example: longtail tune --data digits --imbalance 50 --model resnet8 --epochs 40 --batch-size 32
        """

        def configure(loss: LossConfig) -> RunConfig:
            config = with_loss(RunConfig(**{item.name: getattr(setting, item.name) for item in fields(Setting)}), loss)
            if "--learning-rate" in {word.split("=")[0].replace("_", "-") for word in arguments or ()}:
                return config
            # The recipe's own, which may depend on the loss.
            rate = starting_point(arguments, loss).optimizer.learning_rate
            return replace(config, optimizer=replace(config.optimizer, learning_rate=rate))

        result = tune(configure, search, running, where, progress())
        if as_json:
            print_json(_content(result))
        else:
            _show(result, running)

    return run


def _setting(config: RunConfig) -> Setting:
    return Setting(**{item.name: getattr(config, item.name) for item in fields(Setting)})


def _content(result: TuneResult) -> dict[str, object]:
    import json

    content: dict[str, object] = json.loads((result.folder / "result.json").read_text(encoding="utf-8"))
    return content


def _show(result: TuneResult, running: RunOptions) -> None:
    groups = [name for name in GROUPS if any(each.groups.get(name) is not None for each in result.candidates)]
    table = Table(box=None, pad_edge=False)
    table.add_column("loss")
    for title in ("folds", "balanced accuracy %", *(f"{name} %" for name in groups)):
        table.add_column(title, justify="right")
    table.add_column("")
    for each in result.candidates:
        spread = "" if each.spread is None else f" ± {100 * each.spread:.1f}"
        cells = [each.loss.label, str(len(each.scores)), f"{100 * each.mean:.1f}{spread}" if each.scores else "-"]
        for name in groups:
            value = each.groups.get(name)
            cells.append("-" if value is None else f"{100 * value:.1f}")
        note = {"pruned": "given up", "failed": f"failed: {each.error}"}.get(each.state, "")
        table.add_row(*cells, "best" if each is result.candidates[0] else note)
    out = console()
    out.print(table)
    test, groups_of_test = result.test, [name for name in GROUPS if result.test[name] is not None]
    recalls = ", ".join(f"{name} {test[name]:.1%}" for name in groups_of_test)
    out.print()
    for line in (
        f"{', '.join(groups)}: mean recall of classes with so many training images; ± over the folds",
        f"{result.runs} of {result.grid_runs} folds were trained",
        f"{result.winner.loss.label} on all training images, tested once: error {test['error']:.2f}%, "
        f"recall {test['balanced_accuracy']:.1%} ({recalls})",
        f"the search is in {result.folder}; to train with this loss:",
        f"  {train_command(result.winner, running)}",
    ):
        out.print(line, soft_wrap=True)
