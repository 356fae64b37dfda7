"""``longtail train``, ``evaluate`` and ``predict``; what is slow to import is imported where it is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail._checks import check_non_negative
from longtail.lab.cli import is_first_process
from longtail.lab.cli.arguments import (
    AsJson,
    DryRun,
    LossArguments,
    Runs,
    SetupArguments,
    ShowConfig,
    command_for,
    resolve,
    run_options,
)
from longtail.lab.cli.output import DataDir, console, progress
from longtail.lab.cli.plain import print_csv, print_json
from longtail.lab.config import RunConfig, RunOptions
from longtail.lab.config.encoding import encode
from longtail.lab.data import GROUPS, DataError
from longtail.lab.data.image_scan import list_images

Run = Positional[Annotated[Path, arg(metavar="RUN", help="A run folder.")]]
Adjustment = Annotated[str | None, arg(help="An adjustment of the run, made by longtail adjust.", metavar="SLUG")]

MOST_CLASSES = 100
"""Lines of a table of classes."""


def train_command(
    setup: Annotated[SetupArguments, OmitArgPrefixes] = SetupArguments(),
    loss: Annotated[LossArguments, OmitArgPrefixes] = LossArguments(),
    runs: Runs = RunOptions.runs,
    show_config: ShowConfig = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier. Run the same command again to resume; a finished run is left as it is.

    Example: longtail train --data digits --imbalance 50 --loss focal --class-balanced --model resnet8 --epochs 40
    """
    options = run_options(setup, runs=runs)
    run_training(resolve(setup, loss), options, show_config=show_config, dry_run=dry_run, as_json=as_json)


def run_training(
    config: RunConfig, options: RunOptions, *, show_config: bool = False, dry_run: bool = False, as_json: bool = False
) -> None:
    """Train one run and print what came out; or print its configuration, or what would be trained."""
    if show_config:
        print_json(encode(config))
        return
    from longtail.lab.training import RunFolder, train

    if dry_run:
        from longtail.lab.cli.sweep import preview
        from longtail.lab.experiments import ExecutorOptions

        where = ExecutorOptions(cpus_per_run=os.cpu_count() or 1)
        preview([config], replace(options, devices=None), where, as_json)
        return
    path = train(config, options, progress() if is_first_process() else None)
    if not is_first_process():
        return  # which speaks for all
    result = RunFolder(path).finished_result()
    if as_json:
        print_json(result)
        return
    from longtail.lab.experiments.published import published  # not before the training: it would start later

    final = result["final"]
    out = console()
    if config.keep == "best":
        score = final["validation_balanced_accuracy"]
        out.print(
            f"kept epoch {result['kept_epoch']} of {config.optimizer.epochs}, the best on the validation images: "
            f"balanced accuracy {score:.1%}",
        )
    if known := published(config):
        out.print(f"published error with the full protocol: {known.error:.2f}% ({known.source})")
    out.print(
        f"error {final['error']:.2f}%, {_shares(final)}",
        f"the run is in {path}: longtail evaluate {path}",
        *finetuning_advice(config, final, options),
    )


def finetuning_advice(config: RunConfig, final: Mapping[str, Any], options: RunOptions) -> list[str]:
    """What to do where the head of a frozen backbone cannot even fit its training images: nothing, elsewhere."""
    from longtail.lab.training.cost import duration, speed
    from longtail.lab.training.finetuning import estimate_finetuning, is_underfitted

    if not is_underfitted(config, final):
        return []
    tuning = estimate_finetuning(config, options)
    return [
        f"the head cannot fit {final['train_error']:.1f}% of its training images: they are unlike those that "
        f"{config.model.name} was pretrained on; fine-tuning trains all layers, in about "
        f"{duration(tuning.seconds)} here ({speed(tuning.images_per_second)}):",
        f"  {command_for(tuning.config, options)}",
    ]


def evaluate_command(
    run: Run,
    split: Annotated[
        Literal["test", "train", "validation"],
        arg(help="Which images; training images are not augmented."),
    ] = "test",
    data: Annotated[
        str | None, arg(help="Other images of the same classes, or the new path of the run's images.", metavar="PATH")
    ] = None,
    adjustment: Adjustment = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run: recall, precision and F1 of its classes, worst first.

    With --data, all images of a folder or list are evaluated, or those of its --split if it has training and test
    images.

    Example: longtail evaluate runs/digits-50-resnet8-focal_0.5_0.999-0123456789
    """
    from longtail.lab.report.tables import class_metrics_table
    from longtail.lab.training import evaluate_run, load_run

    loaded = load_run(run, adjustment)
    found = evaluate_run(loaded, split, data_dir, data)
    evaluated = "images" if found["split"] is None else f"{split} images"
    if as_json:
        print_json({"run": str(run), "adjustment": adjustment, **found, **_by_class(loaded.classes, found)})
        return
    out = console()
    top5 = f", {found['error_top5']:.2f}% not among the five most probable" if found["error_top5"] is not None else ""
    out.print(
        f"{evaluated}: {sum(found['images']):,}",
        f"error: {found['error']:.2f}%{top5}",
        _shares(found),
        f"negative log likelihood {found['nll']:.4f}, calibration error {found['calibration_error']:.1%}",
    )
    out.print()
    table = class_metrics_table(loaded.classes, loaded.counts.tolist(), found, evaluated, MOST_CLASSES)
    out.print(table.to_rich(out.width))
    out.print("in brackets: 95% intervals (Wilson)")
    if table.left_out:
        out.print(f"{table.left_out:,} classes with a higher F1 are left out: --json lists all")


def _shares(metrics: dict[str, Any]) -> str:
    """What a person looks at first, of all classes and of groups of them; a run of an older version has less."""
    titles = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "rarest_quarter": "rarest quarter"}
    shown = [f"{title} {metrics[name]:.1%}" for name, title in titles.items() if metrics.get(name) is not None]
    groups = ", ".join(f"{name} {metrics[name]:.1%}" for name in GROUPS if metrics[name] is not None)
    return f"{', '.join(shown)} ({groups})"


def _by_class(classes: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the classes by their names."""
    names = ("images", "recall", "recall_interval", "precision", "precision_interval", "f1")
    by_class: dict[str, Any] = {name: dict(zip(classes, found[name], strict=True)) for name in names}
    confusion: dict[str, dict[str, int]] = {}
    for label, predicted, images in found["confusion"]:
        confusion.setdefault(classes[label], {})[classes[predicted]] = images
    return by_class | {"confusion": confusion}


def predict_command(
    run: Positional[Annotated[Path, arg(metavar="RUN|ONNX", help="A run folder, or a file of longtail export.")]],
    images: Positional[Annotated[tuple[Path, ...], arg(metavar="IMAGES", help="Images, or folders of images.")]],
    top: Annotated[int, arg(help="Number of classes to list.")] = 5,
    adjustment: Adjustment = None,
    workers: Annotated[int | None, arg(help="Loader processes; by default one per core, up to 8.")] = None,
    as_json: AsJson = False,
) -> None:
    """Name the most probable classes of images, as CSV.

    Images that cannot be read are named on standard error, the others follow, and the exit code is 1.

    Example: longtail predict runs/… photos/ --top 3
    """
    from longtail.lab.training import TrainingError, load_exported, load_run, predict

    if not images:
        raise ValueError("which images? longtail predict RUN photo.jpg, or a folder of images")
    is_exported = run.suffix == ".onnx"
    if is_exported and adjustment is not None:
        raise ValueError(f"{run} has the adjustment that it was exported with: give --adjustment to longtail export")
    loaded = load_exported(run) if is_exported else load_run(run, adjustment)
    paths: list[Path] = []
    for path in images:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        inside = [path]
        if path.is_dir():
            inside = [path / inner / name for inner, folder in list_images(path).items() for name in folder.images]
        if not inside:
            raise ValueError(f"{path} holds no images")
        paths += inside
    if workers is not None:
        check_non_negative("workers", workers)
    say, unreadable = progress(), 0

    def name(error: DataError) -> None:
        nonlocal unreadable
        unreadable += 1
        say.print(f"error: {error}")

    found = predict(loaded, paths, top, workers=workers, unreadable=name)
    if as_json:
        print_json(list(found))
    else:
        print_csv(_rows(found))
    if unreadable:
        raise TrainingError(f"{unreadable:,} of {len(paths):,} images could not be read")


def _rows(predictions: Iterable[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for number, image in enumerate(predictions):
        if not number:
            yield "path", "rank", "class", "probability"
        for rank, (name, probability) in enumerate(zip(image["classes"], image["probabilities"], strict=True), start=1):
            yield image["path"], rank, name, f"{probability:.4f}"
