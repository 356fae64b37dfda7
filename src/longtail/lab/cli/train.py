"""``longtail train``, ``evaluate`` and ``predict``; what is slow to import is imported where it is needed."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from longtail._checks import check_choice, check_non_negative
from longtail.lab.cli.output import AsJson, DataDir, console, is_first_process, print_csv, print_json, progress
from longtail.lab.config import OWN_OPTIONS, DataConfig, LossConfig, RunConfig, RunOptions, with_values
from longtail.lab.data import GROUPS, DataError
from longtail.lab.data.listing import list_images
from longtail.lab.recipes import LATE, RECIPES, default_recipe, late_options, scaled, usual_weighting

__all__ = ["Run", "evaluate_command", "predict_command", "starting_point", "train_command", "with_loss"]

DEFER = "Epoch of the recipe at which the class weights begin: 160 of its 200 are 16 with --epochs 20."
ANNEAL = "Epochs of the recipe over which β then grows from 0, N = 1/(1-β) by the same factor in each."

Run = Positional[Annotated[Path, arg(metavar="RUN", help="A run folder.")]]


def train_command(arguments: Sequence[str] | None) -> Callable[..., None]:
    """The command with the defaults of the recipe, or of the configuration file, that ``arguments`` name."""
    start = starting_point(arguments)

    def run(
        config: Annotated[RunConfig, OmitArgPrefixes, arg(name="")] = start,
        running: Annotated[RunOptions, OmitArgPrefixes] = RunOptions(),
        devices: Annotated[
            int | None, arg(help="Processes, each with its GPU or its part of the CPU; by default one for each GPU.")
        ] = None,
        defer_reweighting: Annotated[float | None, arg(help=DEFER)] = start.optimizer.defer_reweighting,
        anneal_beta: Annotated[float | None, arg(help=ANNEAL)] = start.optimizer.anneal_beta,
        recipe: Annotated[str | None, arg(help="cifar or large: where all other values start from.")] = None,
        config_file: Annotated[
            Path | None,
            arg(
                name="config", metavar="FILE", help="A config.json, or a run folder: where all other values start from."
            ),
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Train a classifier, or go on with a training that was interrupted.

        The values shown are those of the recipe for the data; name the data, the loss and the epochs with --help to see
        theirs. The same command goes on with a run that was interrupted, and leaves a finished one as it is.

        Example: longtail train --data digits --imbalance 50 --loss focal --beta 0.999 --gamma 0.5 --model resnet8
        """
        from longtail.lab.training import RunFolder, train

        path = train(config, running, progress() if is_first_process() else None, devices)
        if not is_first_process():
            return  # which speaks for all
        result = RunFolder(path).result()
        assert result is not None
        if as_json:
            print_json(result)
            return
        from longtail.lab.experiments.published import published  # not before the training: it would start later

        final = result["final"]
        groups = ", ".join(f"{name} {final[name]:.1%}" for name in GROUPS if final[name] is not None)
        out = console()
        if known := published(config):
            out.print(f"published, of the full protocol: error {known.error:.2f}% ({known.place})", soft_wrap=True)
        for line in (
            f"error {final['error']:.2f}%; recall {final['balanced_accuracy']:.1%} ({groups})",
            f"the run is in {path}: longtail evaluate {path}",
        ):
            out.print(line, soft_wrap=True)

    return run


def starting_point(
    arguments: Sequence[str] | None, loss: LossConfig | None = None, base: RunConfig | None = None
) -> RunConfig:
    """What the other flags are differences from; with a loss instead of theirs, or in place of a file, if given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("data", "loss", "weighting", "beta", "recipe", "config", "epochs", "sampling"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--betas", nargs="*")
    for name in LATE:
        parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", type=float)
    try:
        given, _ = parser.parse_known_args(list(arguments or ()))
    except argparse.ArgumentError:  # a flag without its value, which the parser of all flags will say
        return RunConfig()
    if given.config and given.recipe:
        raise ValueError(f"recipe {given.recipe} would do nothing: all values start from {given.config}")
    epochs = None
    with contextlib.suppress(ValueError):  # no number, which the parser of all flags will say
        epochs = max(int(given.epochs or 0), 0)
    late = {name: value for name in LATE if (value := getattr(given, name)) is not None and loss is None}
    if given.config and base is None:
        base = _read_config(Path(given.config))
    if base is not None:
        if given.sampling and given.sampling != base.data.sampling:
            base = replace(base, data=replace(base.data, sampling=given.sampling, sampling_beta=None))
        if given.loss or given.weighting or given.beta or given.betas:
            base = with_loss(base, _with_beta(given, _loss(given, base.loss)))
    else:
        if arguments is not None and not given.data and not {"-h", "--help"} & set(arguments):
            raise ValueError("which data? --data digits, a name of longtail data list, or a folder of images")
        data = DataConfig(data=given.data or "digits")
        recipe = given.recipe or default_recipe(data.data)
        check_choice("recipe", recipe, tuple(RECIPES))
        base = RECIPES[recipe](data, loss or _loss(given, LossConfig()))
    base = with_values(base, late)
    return replace(base, optimizer=scaled(base.optimizer, epochs or None))


def _read_config(path: Path) -> RunConfig:
    if path.is_dir():
        path /= "config.json"  # a run folder
    try:
        return RunConfig.from_json(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


def _loss(given: argparse.Namespace, base: LossConfig) -> LossConfig:
    """The loss that was named, without the values of another one."""
    loss = given.loss or base.loss
    usual = base.weighting if usual_weighting(loss) == usual_weighting(base.loss) else usual_weighting(loss)
    weighting = given.weighting or usual
    own: dict[str, Any] = {name: getattr(base, name) if loss == base.loss else None for name in OWN_OPTIONS}
    beta = base.beta if weighting == base.weighting else None
    betas = base.betas if weighting == base.weighting else ()
    return replace(base, loss=loss, weighting=weighting, beta=beta, betas=betas, **own)


def _with_beta(given: argparse.Namespace, loss: LossConfig) -> LossConfig:
    """With the β that was named, one or one for each class, in place of the other kind."""
    try:
        beta, betas = given.beta and float(given.beta), tuple(map(float, given.betas or ()))
    except ValueError:  # no number, which the parser of all flags will say
        return loss
    if loss.weighting != "effective" or (beta is None) == (not betas):
        return loss
    return replace(loss, beta=beta, betas=betas)


def with_loss(base: RunConfig, loss: LossConfig) -> RunConfig:
    """With another loss, and without a schedule of weights that it does not have."""
    idle: dict[str, Any] = dict.fromkeys(name for name in LATE if name not in late_options(loss))
    return replace(base, loss=loss, optimizer=replace(base.optimizer, **idle))


def evaluate_command(
    run: Run,
    split: Annotated[
        Literal["test", "train"], arg(help="Test images, or training images as they are in the test.")
    ] = "test",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run, and show its classes, worst first.

    Example: longtail evaluate runs/digits-50-resnet8-focal_0.5_0.999-0123456789
    """
    from longtail.lab.training import evaluate_run, load_run

    loaded = load_run(run)
    found = evaluate_run(loaded, split, data_dir)
    if as_json:
        by_class = {name: dict(zip(loaded.classes, found[name], strict=True)) for name in ("images", "recall")}
        print_json({"run": str(run), "split": split, **found, **by_class})
        return
    out = console()
    top5 = f", {found['error_top5']:.2f}% not among the five most probable" if found["error_top5"] is not None else ""
    groups = ", ".join(f"{name} {found[name]:.1%}" for name in GROUPS if found[name] is not None)
    for line in (
        f"{split} images: {sum(found['images']):,}",
        f"error: {found['error']:.2f}%{top5}",
        f"mean recall of the classes: {found['balanced_accuracy']:.1%} ({groups})",
        f"negative log likelihood {found['nll']:.4f}, calibration error {found['calibration_error']:.1%}",
    ):
        out.print(line, soft_wrap=True)
    out.print()
    table = Table(box=None, pad_edge=False)
    for name in ("class", "training images", f"{split} images", "recall"):
        table.add_column(name, justify="left" if name == "class" else "right")
    rows = zip(loaded.classes, loaded.counts.tolist(), found["images"], found["recall"], strict=True)
    for name, count, images, recall in sorted(rows, key=lambda row: (row[3] is None, row[3] or 0.0)):
        table.add_row(name, f"{count:,}", f"{images:,}", "-" if recall is None else f"{recall:.1%}")
    out.print(table)


def predict_command(
    run: Run,
    images: Positional[Annotated[tuple[Path, ...], arg(metavar="IMAGES", help="Images, or folders of images.")]],
    top: Annotated[int, arg(help="How many classes to name.")] = 5,
    workers: Annotated[
        int | None, arg(help="Processes that read the images; by default one for each core, up to 8.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name the most probable classes of images, as CSV.

    Images that cannot be read are named on standard error, the others follow, and the exit code is 1.

    Example: longtail predict runs/… photos/ --top 3
    """
    from longtail.lab.training import TrainingError, load_run, predict

    if not images:
        raise ValueError("which images? longtail predict RUN photo.jpg, or a folder of images")
    paths: list[Path] = []
    for path in images:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        inside = [path]
        if path.is_dir():
            inside = [path / place / name for place, folder in list_images(path).items() for name in folder.images]
        if not inside:
            raise ValueError(f"{path} holds no images")
        paths += inside
    if workers is not None:
        check_non_negative("workers", workers)
    say, unreadable = progress(), 0

    def name(error: DataError) -> None:
        nonlocal unreadable
        unreadable += 1
        say.print(f"error: {error}", soft_wrap=True)

    found = predict(load_run(run), paths, top, workers=workers, unreadable=name)
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
