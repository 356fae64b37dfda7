"""``longtail train``, ``evaluate`` and ``predict``; what is slow to import is imported where it is needed."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from rich.table import Table
from rich.text import Text
from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail._checks import check_choice
from longtail.lab.cli.output import AsJson, DataDir, console, print_json, progress
from longtail.lab.config import DataConfig, LossConfig, RunConfig, RunOptions
from longtail.lab.data import GROUPS
from longtail.lab.data.listing import list_images
from longtail.lab.recipes import RECIPES, default_recipe

__all__ = ["evaluate_command", "predict_command", "train_command"]

Run = Positional[Annotated[Path, arg(metavar="RUN", help="A run folder.")]]


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """The command with the defaults of the recipe, or of the configuration file, that ``arguments`` name."""
    start = _starting_point(arguments)

    def run(
        config: Annotated[RunConfig, OmitArgPrefixes] = start,
        options: Annotated[RunOptions, OmitArgPrefixes] = RunOptions(),
        recipe: Annotated[str | None, arg(help="cifar or large: where all other values start from.")] = None,
        config_file: Annotated[Path | None, arg(name="config", metavar="FILE", help="Start from this one.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Train a classifier, or go on with a training that was interrupted.

        The values shown are those of the recipe for the data; name the data, the loss and the epochs with --help to see
        theirs. The same command goes on with a run that was interrupted, and leaves a finished one as it is.

        Example: longtail train --data digits --imbalance 50 --loss focal --beta 0.999 --gamma 0.5 --model resnet8
        """
        from longtail.lab.training import RunFolder, train

        path = train(config, options, progress())
        if torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        result = RunFolder(path).result()
        assert result is not None
        if as_json:
            print_json(result)
            return
        final = result["final"]
        groups = ", ".join(f"{name} {final[name]:.1%}" for name in GROUPS if final[name] is not None)
        out = console()
        for line in (
            f"error {final['error']:.2f}%; recall {final['balanced_accuracy']:.1%} ({groups})",
            f"the run is in {path}: longtail evaluate {path}",
        ):
            out.print(line, soft_wrap=True)

    return run


def _starting_point(arguments: Sequence[str]) -> RunConfig:
    """What the other flags are differences from."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("data", "loss", "weighting", "recipe", "config", "epochs"):
        parser.add_argument(f"--{name}")
    given, _ = parser.parse_known_args(list(arguments))
    if given.config:
        path = Path(given.config)
        if not path.is_file():
            raise ValueError(f"{path} does not exist")
        base = RunConfig.from_json(path.read_text(encoding="utf-8"), path)
        return replace(base, loss=_loss(given, base.loss)) if given.loss or given.weighting else base
    data = DataConfig(data=given.data or "digits")
    recipe = given.recipe or default_recipe(data.data)
    check_choice("recipe", recipe, tuple(RECIPES))
    epochs = int(given.epochs) if (given.epochs or "").isdecimal() else None
    return RECIPES[recipe](data, _loss(given, LossConfig()), epochs or None)


def _loss(given: argparse.Namespace, base: LossConfig) -> LossConfig:
    """The loss that was named, without the values of another one."""
    loss, weighting = given.loss or base.loss, given.weighting or base.weighting
    gamma = base.gamma if loss == base.loss else None
    beta = base.beta if weighting == base.weighting else None
    return replace(base, loss=loss, weighting=weighting, gamma=gamma, beta=beta)


def evaluate_command(
    run: Run, split: Literal["test", "train"] = "test", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Evaluate a finished run, and show its classes, worst first.

    Example: longtail evaluate runs/digits-50-resnet8-focal_0.5_0.999-0123456789
    """
    from longtail.lab.training import evaluate_run, load_run

    loaded = load_run(run)
    found = evaluate_run(loaded, split, data_dir)
    if as_json:
        names = dict(zip(loaded.classes, found.pop("recall"), strict=True))
        print_json({"run": str(run), "split": split, **found, "recall": names})
        return
    out = console()
    summary = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items() if isinstance(value, float)
    )
    out.print(f"{split}: {summary}\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("class", "training images", "recall"):
        table.add_column(name, justify="left" if name == "class" else "right")
    rows = zip(loaded.classes, loaded.counts.tolist(), found["recall"], strict=True)
    for name, count, recall in sorted(rows, key=lambda row: (row[2] is None, row[2] or 0.0)):
        table.add_row(Text(name), f"{count:,}", "-" if recall is None else f"{recall:.1%}")
    out.print(table)


def predict_command(
    run: Run,
    images: Positional[Annotated[Path, arg(metavar="IMAGES", help="An image, or a folder of images.")]],
    top: Annotated[int, arg(help="How many classes to name.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Name the most probable classes of images, as CSV.

    Example: longtail predict runs/… photos/ --top 3
    """
    from longtail.lab.training import load_run, predict

    if images.is_dir():
        paths = [images / place / name for place, folder in list_images(images).items() for name in folder.images]
    else:
        paths = [images]
    if not paths:
        raise ValueError(f"{images} holds no images")
    found = predict(load_run(run), paths, top)
    if as_json:
        print_json(list(found))
        return
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["path", "rank", "class", "probability"])
    for image in found:
        for rank, (name, probability) in enumerate(zip(image["classes"], image["probabilities"], strict=True), start=1):
            table.writerow([image["path"], rank, name, f"{probability:.4f}"])
