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

from longtail.lab.config import (
    ConfigError,
    LossConfig,
    RunConfig,
    RunOptions,
    leaves,
    shortest,
)
from longtail.lab.recipes import configure
from longtail.losses import DEFAULT_BETA

__all__ = [
    "AsJson",
    "DryRun",
    "LossArguments",
    "RunningArguments",
    "SetupArguments",
    "Switch",
    "command_for",
    "flag",
    "in_flags",
    "read_config",
    "resolve",
]

Switch = FlagCreatePairsOff[bool]


def flag(help_text: str, **options: Any) -> Any:
    """A flag whose default is said in its help, if it has one."""
    return arg(help=help_text, help_behavior_hint="", **options)


AsJson = Annotated[Switch, flag("Print JSON.", name="json")]
DryRun = Annotated[Switch, flag("Print what would be trained and how long it takes, then stop.")]
Set = Annotated[
    UseAppendAction[tuple[str, ...]],
    flag("Any other field of the configuration, such as optimizer.momentum=0.8; repeatable.", metavar="FIELD=VALUE"),
]


@dataclass(frozen=True, kw_only=True)
class SetupArguments:
    """Data, network and schedule; by default as the recipe for the data says."""

    data: Annotated[
        str | None, flag("Data set (see longtail data list), or a folder or list of images.", metavar="NAME|PATH")
    ] = None
    test_data: Annotated[Path | None, flag("Folder or list of test images, if separate.", metavar="PATH")] = None
    imbalance: Annotated[
        float | None, flag("Make the data long-tailed: largest over smallest class.", metavar="RATIO")
    ] = None
    image_size: Annotated[int | None, flag("Input size of the network for image files.", metavar="PIXELS")] = None
    model: Annotated[
        str | None, flag("Network: resnet8 to resnet110 for small images, resnet18 to resnet152.", metavar="NAME")
    ] = None
    pretrained: Annotated[
        str | None, flag("Initial weights: none, a finished run or a safetensors file.", metavar="none|RUN|FILE")
    ] = None
    freeze: Annotated[bool | None, flag("Train only the head of a pretrained network.")] = None
    sampling: Annotated[
        str | None,
        flag("shuffled, class_balanced, square_root, progressive or effective.", metavar="KIND"),
    ] = None
    epochs: Annotated[int | None, flag("Number of training epochs; the schedule is stretched to them.")] = None
    batch_size: Annotated[int | None, flag("Images per step; the learning rate scales with it.")] = None
    micro_batch_size: Annotated[int | None, flag("Images per forward pass, to save memory.")] = None
    lr: Annotated[float | None, flag("Learning rate.")] = None
    seed: Annotated[int | None, flag("Seed of initial weights, image order and augmentation.")] = None
    precision: Annotated[str | None, flag("32-true, bf16-mixed or 16-mixed.", metavar="NAME")] = None
    recipe: Annotated[str | None, flag("Recipe to start from: cifar or imagenet.", metavar="NAME")] = None
    config: Annotated[
        Path | None, flag("Start from a config.json or a run folder instead of a recipe.", metavar="PATH")
    ] = None
    set: Set = ()


@dataclass(frozen=True, kw_only=True)
class LossArguments:
    """The loss; --loss alone is plain, --beta makes it class-balanced."""

    loss: Annotated[
        str | None,
        flag("softmax, sigmoid, focal, softmax_focal, logit_adjusted, ldam or asymmetric.", metavar="NAME"),
    ] = None
    beta: Annotated[float | None, flag("β of the class-balanced loss, from 0 (plain) to 1 (inverse frequency).")] = None
    class_balanced: Annotated[Switch, flag(f"Short for --beta {DEFAULT_BETA:g}.")] = False
    gamma: Annotated[float | None, flag("γ of the focal losses; 0.5 by default.")] = None
    defer_reweighting: Annotated[
        float | None, flag("Fraction of training after which class weights start (DRW).", metavar="FRACTION")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunningArguments:
    """Where and how to run; results do not depend on it."""

    runs: Annotated[Path, flag("Folder of the run folders; runs by default.", metavar="DIR")] = RunOptions.runs
    data_dir: Annotated[Path | None, flag("Folder of the named data sets; default $LONGTAIL_DATA.", metavar="DIR")] = (
        None
    )
    accelerator: Annotated[str, flag("cpu, cuda, mps or auto.", metavar="NAME")] = RunOptions.accelerator
    workers: Annotated[int | None, flag("Loader processes; one per core, up to 8, by default.")] = None

    @property
    def options(self) -> RunOptions:
        """The same for everything below the command line."""
        return RunOptions(**{item.name: getattr(self, item.name) for item in fields(RunningArguments)})


OTHER_NAMES = {"pretrained": "weights"}
"""Flags that have another name than their field."""

NOT_FIELDS = ("config", "set", "class_balanced")


def resolve(*arguments: Any, loss: LossConfig | None = None, base: RunConfig | None = None) -> RunConfig:
    """The configuration that flags ask for: a recipe, or what ``--config`` names, with the given fields changed.

    Args:
        arguments: groups of flags in which None means "as the recipe says".
        loss: the loss, in place of flags.
        base: where to start from, in place of a recipe.

    Example:
        >>> resolve(SetupArguments(data="cifar10", epochs=20), LossArguments(loss="focal", beta=0.999)).run_id[:38]
        'cifar10-resnet32-focal_0.5_0.999-s0-7c'
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
        given |= _assignments(getattr(group, "set", ()))
        if config := getattr(group, "config", None):
            base = read_config(config)
    if loss is not None:
        names = {name: path[1] for name, path in leaves(RunConfig).items() if path[0] == "loss"}
        given |= {name: getattr(loss, field) for name, field in names.items()}
    if base is None and "data" not in given:
        raise ConfigError("--data is missing: digits, another name of longtail data list, or a folder of images")
    return configure(given, base)


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    """``optimizer.momentum=0.8`` as a field and its value, JSON or else text."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes FIELD=VALUE, such as optimizer.momentum=0.8, got {text!r}")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found


def read_config(path: Path) -> RunConfig:
    """A configuration from a file, or that of a run folder."""
    from longtail.lab.training.run_folder import RunFolder

    if path.is_dir():
        return RunFolder(path).config()
    try:
        return RunConfig.from_json(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
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
    start = configure({"data": data.source, "loss": config.loss.name, "epochs": epochs})
    words = ["longtail", "train", "--data", data.source, "--loss", config.loss.name, "--epochs", str(epochs)]
    derived = {"fingerprint", "path", "weights_sha256", "data", "loss", "epochs"}
    if not config.loss.betas and config.loss.weighting == "effective":
        derived.add("weighting")  # which β says
    for name, path in leaves(RunConfig).items():
        value: Any = functools.reduce(getattr, path, config)
        if name in derived or value == functools.reduce(getattr, path, start) or name == "weights_path":
            continue
        if name == "weights" and config.model.weights_path is not None:
            value = str(config.model.weights_path)
        known = _flags().get(path)
        if known and isinstance(value, bool):
            words.append(known if value else known.replace("--", "--no-", 1))
        elif known and value is not None:
            words += [known, shortest(value)]
        else:
            text = value if isinstance(value, str) else json.dumps(list(value) if isinstance(value, tuple) else value)
            words += ["--set", f"{'.'.join(path)}={text}"]
    for item in fields(options):
        if (value := getattr(options, item.name)) != item.default:
            words += [f"--{item.name}".replace("_", "-"), str(value)]
    return shlex.join(words)


def in_flags(text: str) -> str:
    """A message about fields of the configuration, in the flags that set them.

    Example:
        >>> in_flags("optimizer.micro_batch_size 64 fits; try a lower optimizer.momentum")
        '--micro-batch-size 64 fits; try a lower --set optimizer.momentum=…'
    """
    by_path = {".".join(path): flag for path, flag in _flags().items()}
    paths = {".".join(path) for path in leaves(RunConfig).values() if len(path) > 1}

    def name(found: re.Match[str]) -> str:
        path = found[0]
        return by_path.get(path) or (f"--set {path}=…" if path in paths else path)

    return re.sub(r"\b(?:data|model|loss|optimizer)\.[a-z_]+(?:\.[a-z_]+)?\b", name, text)
