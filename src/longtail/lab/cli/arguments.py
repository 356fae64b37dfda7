"""The flags of commands that train, and how they become a configuration: parsed once, resolved once."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, UseAppendAction, arg

from longtail._checks import check_choice
from longtail.lab.cli.output import DataDir
from longtail.lab.config import (
    ConfigError,
    LossConfig,
    RunConfig,
    RunOptions,
    config_errors,
    leaves,
    shortest,
    values_by_name,
    with_fields,
)
from longtail.lab.models import IMAGENET
from longtail.lab.recipes import RECIPES, configure
from longtail.losses import DEFAULT_BETA, LOSS_ALIASES, LOSSES

Switch = FlagCreatePairsOff[bool]


AsJson = Annotated[Switch, arg(help="Print JSON.", name="json")]
ShowConfig = Annotated[Switch, arg(help="Print the resolved configuration and stop.")]
DryRun = Annotated[Switch, arg(help="Print what would be trained and how long it takes, then stop.")]
Set = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(
        help="Any other field, such as optimizer.momentum=0.8, workers=4 or accelerator=cpu; repeatable.",
        metavar="FIELD=VALUE",
    ),
]
Runs = Annotated[Path, arg(help="Folder of the run folders.", metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class SetupArguments:
    """Data, network and schedule; by default as the recipe for the data says."""

    data: Annotated[
        str | None, arg(help="Data set (see longtail data list), or a folder or list of images.", metavar="NAME|PATH")
    ] = None
    group_pattern: Annotated[
        str | None, arg(help="Regex for groups in paths: a group stays in one split.", metavar="REGEX")
    ] = None
    validation_fraction: Annotated[
        float | None, arg(help="Fraction of the training images held out for validation.", metavar="FRACTION")
    ] = None
    imbalance: Annotated[
        float | None, arg(help="Make the data long-tailed: largest over smallest class.", metavar="RATIO")
    ] = None
    image_size: Annotated[int | None, arg(help="Input size of the network.", metavar="PIXELS")] = None
    model: Annotated[
        str | None, arg(help="Network: resnet8 to resnet110 for small images, or any model of timm.", metavar="NAME")
    ] = None
    pretrained: Annotated[
        str | None,
        arg(help="Initial weights: imagenet, none, a file or a run.", metavar="imagenet|none|FILE|RUN"),
    ] = None
    freeze: Annotated[bool | None, arg(help="Train only the head of a pretrained network, on cached features.")] = None
    views: Annotated[int | None, arg(help="Augmented views per training image, for --freeze.", metavar="K")] = None
    normalize_features: Annotated[bool | None, arg(help="Scale features to length 1, for --freeze.")] = None
    sampling: Annotated[
        str | None,
        arg(help="shuffled, class_balanced, square_root, progressive or effective.", metavar="KIND"),
    ] = None
    epochs: Annotated[int | None, arg(help="Number of training epochs; the schedule is stretched to them.")] = None
    batch_size: Annotated[int | None, arg(help="Images per step; the learning rate scales with it.")] = None
    micro_batch_size: Annotated[int | None, arg(help="Images per forward pass, to save memory.")] = None
    optimizer: Annotated[str | None, arg(help="sgd or adamw.", metavar="NAME")] = None
    lr: Annotated[float | None, arg(help="Learning rate.")] = None
    schedule: Annotated[str | None, arg(help="Learning-rate schedule: step or cosine.", metavar="NAME")] = None
    seed: Annotated[int | None, arg(help="Seed of initial weights, image order and augmentation.")] = None
    keep: Annotated[
        str | None, arg(help="Epoch to keep: the last, or the best on validation data.", metavar="last|best")
    ] = None
    config: Annotated[
        str | None,
        arg(
            help="Recipe to start from: cifar, imagenet, linear_probe or finetune; or a config.json, or a run folder.",
            metavar="RECIPE|PATH",
        ),
    ] = None
    set: Set = ()


@dataclass(frozen=True, kw_only=True)
class LossArguments:
    """The loss; --loss alone is plain, --beta makes it class-balanced."""

    loss: Annotated[str | None, arg(help=f"{', '.join((*LOSSES, *LOSS_ALIASES))}.", metavar="NAME")] = None
    beta: Annotated[
        float | None, arg(help="β of the class-balanced loss, from 0 (plain) to 1 (inverse frequency).")
    ] = None
    class_balanced: Annotated[Switch, arg(help=f"Short for --beta {DEFAULT_BETA:g}.")] = False
    gamma: Annotated[float | None, arg(help="γ of the focal losses; 0.5 by default.")] = None
    defer_reweighting: Annotated[
        float | None, arg(help="Fraction of training after which class weights start (DRW).", metavar="FRACTION")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunningArguments:
    """Where and how to run; results do not depend on it."""

    runs: Runs = RunOptions.runs
    data_dir: DataDir = None
    accelerator: Annotated[str, arg(help="cpu, cuda, mps or auto.", metavar="NAME")] = RunOptions.accelerator
    workers: Annotated[int | None, arg(help="Loader processes; by default one per core, up to 8.")] = None


OTHER_NAMES = {"pretrained": "weights"}
"""Flags that have another name than their field."""

NOT_FIELDS = ("config", "set", "class_balanced")

DECIDING = ("model", "weights", "freeze", "optimizer", "schedule")
"""Fields that others follow."""

RUNNING = tuple(item.name for item in fields(RunOptions))
"""Fields that say where and how to run, and are no part of the configuration."""

FILLED_IN = ("version", "fingerprint", "path", "weights_sha256", "weights_path")
"""Fields that are found out, and never asked for."""


def resolve(*arguments: Any, loss: LossConfig | None = None, base: RunConfig | None = None) -> RunConfig:
    """The configuration that flags ask for: a recipe, or what ``--config`` names, with the given fields changed.

    Args:
        arguments: groups of flags in which None means "as the recipe says".
        loss: the loss, instead of flags.
        base: where to start from, instead of a recipe.

    Example:
        >>> resolve(SetupArguments(data="cifar10", epochs=20), LossArguments(loss="focal", beta=0.999)).run_id[:32]
        'cifar10-resnet32-focal_0.5_0.999'
    """
    given = {
        OTHER_NAMES.get(item.name, item.name): value
        for group in arguments
        for item in fields(group)
        if item.name not in NOT_FIELDS and (value := getattr(group, item.name)) is not None
    }
    balanced = any(getattr(group, "class_balanced", False) for group in arguments)
    if balanced and given.setdefault("beta", DEFAULT_BETA) != DEFAULT_BETA:
        raise ConfigError("--class-balanced and --beta exclude each other")
    if given.get("weights") == "none":
        given |= {"weights": None, "freeze": given.get("freeze", False)}
    for group in arguments:
        given |= {name: value for name, value in _assignments(group).items() if name not in RUNNING}
        config = getattr(group, "config", None)
        if config in RECIPES:
            given["recipe"] = config
        elif config is not None:
            base = read_config(Path(config))
    if base is None and "model" not in given and (parent := _parent_model(given.get("weights"))):
        given["model"] = parent
    if loss is not None:
        names = {name: path[1] for name, path in leaves(RunConfig).items() if path[0] == "loss"}
        given |= {name: getattr(loss, field) for name, field in names.items()}
    if base is None and "data" not in given:
        raise ConfigError("--data is missing: digits, another name of longtail data list, or a folder of images")
    return configure(given, base)


def run_options(setup: Any, **flags: Any) -> RunOptions:
    """Where and how to run: by flags, and by ``--set``.

    Example:
        >>> run_options(SetupArguments(set=("devices=2",)), workers=1).devices
        2
    """
    chosen = {name: value for name, value in _assignments(setup).items() if name in RUNNING}
    return with_fields(RunOptions(**flags), chosen)


def _parent_model(weights: Any) -> str | None:
    """The network of the run that initial weights come from, if they come from a run."""
    path = Path(weights) if isinstance(weights, str) and weights != IMAGENET else None
    return read_config(path).model.name if path is not None and (path / "data.json").exists() else None


def _assignments(group: Any) -> dict[str, Any]:
    """``--set optimizer.momentum=0.8`` as a field and its value."""
    found = {}
    for text in getattr(group, "set", ()):
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes FIELD=VALUE, such as optimizer.momentum=0.8, got {text!r}")
        if name.strip().rpartition(".")[2] in FILLED_IN:
            raise ConfigError(f"{name.strip()!r} cannot be set: it is filled in")
        found[name.strip()] = _value(value)
    return found


def _value(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def other_fields(words: Sequence[str]) -> list[str] | None:
    """What ``--set`` takes, for flags that a command does not have; None if one is no field with a value.

    Example:
        >>> other_fields(["--path-column", "photo", "--momentum=0.8"])
        ['path_column=photo', 'momentum=0.8']
    """
    names = {*leaves(RunConfig), *RUNNING}
    found, left = [], list(words)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in names or not (equals or left):
            return None
        found.append(f"{name}={value if equals else left.pop(0)}")
    return found


def read_config(path: Path) -> RunConfig:
    """A configuration from a file, or that of a run folder."""
    from longtail.lab.training.run_folder import RunFolder

    if path.is_dir():
        return RunFolder(path).config()
    try:
        return RunConfig.from_json(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        if path.suffix:
            raise ConfigError(f"{path} does not exist") from None
        with config_errors():
            check_choice("recipe", str(path), tuple(RECIPES), "; or the path of a config.json or of a run folder")
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None


@functools.cache
def _flags() -> Mapping[tuple[str, ...], str]:
    """The flag of each field that has one."""
    names = [item.name for group in (SetupArguments, LossArguments) for item in fields(group)]
    paths = leaves(RunConfig)
    return {
        paths[OTHER_NAMES.get(name, name)]: f"--{name.replace('_', '-')}"
        for name in names
        if name not in NOT_FIELDS and OTHER_NAMES.get(name, name) in paths
    }


def command_for(config: RunConfig, options: RunOptions = RunOptions()) -> str:
    """The command that trains a configuration.

    Example:
        >>> command_for(resolve(SetupArguments(data="digits", epochs=40, seed=1), LossArguments(loss="focal")))
        'longtail train --data digits --loss focal --epochs 40 --seed 1'
    """
    data, epochs = config.data, config.optimizer.epochs
    given = {"data": data.source, "loss": config.loss.name, "epochs": epochs}
    wanted, usual = values_by_name(config), values_by_name(configure(given))
    asked: dict[str, Any] = {}
    # Where these are not as usual for the data, other fields are not, either: the recipe may be another one.
    while more := {name: wanted[name] for name in DECIDING if wanted[name] != usual[name]}:
        asked |= more
        usual = values_by_name(configure(given | asked))
    words = ["longtail", "train", "--data", data.source, "--loss", config.loss.name, "--epochs", str(epochs)]
    covered = {*FILLED_IN, "data", "loss", "epochs"}
    if config.loss.weighting == "effective":
        covered.add("weighting")  # by β
    for name, path in leaves(RunConfig).items():
        value = wanted[name]
        if name in covered or (name not in asked and value == usual[name]):
            continue
        if name == "weights":
            value = "none" if value is None else value if value == IMAGENET else config.model.weights_path or value
        known = _flags().get(path)
        if known and isinstance(value, bool):
            words.append(known if value else known.replace("--", "--no-", 1))
        elif known and value is not None:
            text = shortest(value)
            words += [f"{known}={text}"] if text.startswith("-") else [known, text]
        else:
            words += ["--set", f"{'.'.join(path)}={_text(value)}"]
    for item in fields(RunOptions):
        if (value := getattr(options, item.name)) != item.default:
            words += ["--runs", str(value)] if item.name == "runs" else ["--set", f"{item.name}={_text(value)}"]
    return shlex.join(words)


def command_from(action: str, run: Path, changes: Mapping[str, Any], runs: Path | None = None) -> str:
    """The command for a run: to train or tune with its configuration, some fields changed, or adjust or evaluate it.

    Example:
        >>> command_from("train", Path("runs/a"), {"loss.name": "focal", "loss.beta": None}, Path("runs"))
        'longtail train --config runs/a --loss focal --set loss.beta=null --runs runs'
        >>> command_from("adjust", Path("runs/a"), {"method": "tau_norm", "tau": 0.5})
        'longtail adjust runs/a --method tau_norm --tau 0.5'
    """
    words = ["longtail", action, *(["--config"] if action in ("train", "tune") else []), str(run)]
    for name, value in changes.items():
        known = _flags().get(tuple(name.split("."))) if action in ("train", "tune") else f"--{name}"
        words += ["--set", f"{name}={_text(value)}"] if known is None or value is None else [known, shortest(value)]
    return shlex.join([*words, *([] if runs is None else ["--runs", str(runs)])])


def _text(value: Any) -> str:
    """What :func:`_value` reads as this value."""
    text = str(value) if isinstance(value, (str, Path)) else json.dumps(value)
    return json.dumps(text) if isinstance(value, (str, Path)) and _value(text) != text else text


def in_flags(text: str) -> str:
    """A message about fields of the configuration, in the flags that set them; what is quoted stays as it is.

    Example:
        >>> in_flags("optimizer.micro_batch_size 64 fits; try a lower optimizer.momentum")
        '--micro-batch-size 64 fits; try a lower --set optimizer.momentum=…'
    """
    by_path = {".".join(path): flag for path, flag in _flags().items()}
    paths = {".".join(path) for path in leaves(RunConfig).values() if len(path) > 1}

    def name(found: re.Match[str]) -> str:
        path = found[0]
        if path in paths and path.startswith("data.files."):  # which every command that reads images has a flag for
            return f"--{path.removeprefix('data.files.').replace('_', '-')}"
        return by_path.get(path) or (f"--set {path}=…" if path in paths else path)

    return re.sub(r"(?<![\w./'-])(?:data|model|loss|optimizer)(?:\.[a-z_]+){1,2}(?![\w./=-])", name, text)
