"""``longtail advise``: β from the images; what is slow to import is imported where it is needed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from longtail._checks import check_choice, check_in_unit_interval
from longtail.lab.cli.arguments import AsJson, command_for
from longtail.lab.cli.figures import ENDINGS
from longtail.lab.cli.output import DataDir, console, print_classes, progress
from longtail.lab.cli.plain import print_json
from longtail.lab.config import ConfigError, DataConfig, LossConfig, ModelConfig, RunConfig, RunOptions, config_errors
from longtail.lab.data import ImageFolderOptions, SubsetOptions, open_dataset
from longtail.lab.recipes import RECIPES, configure, default_recipe

if TYPE_CHECKING:
    from longtail.lab.advice import Advice

__all__ = ["advise_command"]


def advise_command(
    data: Annotated[
        str | None, arg(metavar="DATA", help="A name of longtail data list, or a folder or list of your own images.")
    ] = None,
    subset: Annotated[SubsetOptions, OmitArgPrefixes] = SubsetOptions(),
    files: Annotated[ImageFolderOptions, OmitArgPrefixes] = ImageFolderOptions(),
    data_dir: DataDir = None,
    run: Annotated[
        Path | None, arg(metavar="RUN", help="A finished run whose network compares the images; else their pixels do.")
    ] = None,
    quantile: Annotated[
        float, arg(help="Of the distances between two augmented views of an image: the radius of a prototype.")
    ] = 0.5,
    output: Annotated[
        Path | None, arg(aliases=["-o"], metavar="FILE", help="Draw the classes, as .svg, .pdf, .png or .html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate from the images how many prototypes each class has, and suggest β from it.

    Two images of a class are the same prototype if they are as near as two augmented views of one image are. It is an
    estimate under the paper's model; longtail tune finds by trial what trains best.

    Example: longtail advise --data digits --imbalance 50
    """
    if data is None:
        raise ConfigError("--data is missing: digits, another name of longtail data list, or a folder of images")
    with config_errors():
        check_in_unit_interval("quantile", quantile)
        if output is not None:
            check_choice("format", output.suffix.removeprefix("."), ENDINGS)
    from longtail.lab.advice import advise
    from longtail.lab.training import load_run

    loaded = None if run is None else load_run(run)
    dataset = open_dataset(data, data_dir, files=files, console=progress())
    for note in dataset.notes:
        progress().print(note, soft_wrap=True)
    chosen = subset.choose(dataset)[0]
    progress().print(f"comparing {len(chosen.train):,} images …", soft_wrap=True)
    advice = advise(chosen, loaded, quantile)
    config = _config(DataConfig(name=data, subset=subset, files=files), loaded.config if loaded else None)
    if output is not None:
        from longtail.lab.report import save
        from longtail.lab.report.figures import prototypes_per_class

        save(prototypes_per_class(advice), output.parent, output.stem, [output.suffix[1:]])
    if as_json:
        print_json(_content(advice, config, data_dir))
    else:
        _show(advice, config, data_dir)


def _config(data: DataConfig, of_run: RunConfig | None) -> RunConfig:
    """How to train on the data: as the network of the run was trained, where that is told, or by the recipe."""
    if of_run is None or of_run.model.freeze:
        config = RECIPES[default_recipe(data.name)](data, LossConfig())
        return config if of_run is None else replace(config, model=ModelConfig(name=of_run.model.name))
    chosen: dict[str, Any] = {name: getattr(data, name) for name in ("name", "subset", "files", "fold")}
    return replace(of_run, data=replace(of_run.data, path=None, fingerprint=None, **chosen))


def _command(
    config: RunConfig, beta: float | None = None, betas: tuple[float, ...] = (), data_dir: Path | None = None
) -> str:
    config = configure({"betas": betas} if betas else {"beta": beta}, config)
    return command_for(config, RunOptions(data_dir=data_dir))


def _content(advice: Advice, config: RunConfig, data_dir: Path | None) -> dict[str, Any]:
    """What the images say, as JSON: null is infinity for N and ends of intervals, and nothing for too few images."""
    estimate = advice.estimate
    columns = {
        "images": estimate.counts,
        "alone": estimate.alone,
        "prototypes": estimate.prototypes,
        "prototypes_low": estimate.low,
        "prototypes_high": estimate.high,
        "beta": estimate.beta,
        "beta_low": estimate.beta_low,
        "beta_high": estimate.beta_high,
        "volume": estimate.volume,
        "growth": estimate.growth,
        "growth_low": estimate.growth_low,
        "growth_high": estimate.growth_high,
        "prototypes_shrunken": estimate.shrunken,
        "beta_shrunken": estimate.shrunken_beta,
        "effective_number": estimate.effective,
        "weight": advice.weights,
        "weight_of_one_beta": advice.global_weights,
    }
    values = zip(advice.classes, *(column.tolist() for column in columns.values()), strict=True)
    rows = [dict(zip(("class", *columns), map(_finite, row), strict=True)) for row in values]
    return {
        "data": advice.name,
        "features": advice.features,
        "quantile": advice.quantile,
        "radius": estimate.radius,
        "level": estimate.level,
        "prototypes": _finite(estimate.pooled),
        "beta": advice.beta,
        "betas": advice.betas,
        "command": _command(config, advice.beta, data_dir=data_dir),
        "command_with_betas": _command(config, betas=advice.betas, data_dir=data_dir),
        "classes": rows,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(advice: Advice, config: RunConfig, data_dir: Path | None) -> None:
    estimate, out = advice.estimate, console()
    out.print(
        f"{advice.name}: {advice.features}; the radius of a prototype, {estimate.radius:.4g}, is quantile "
        f"{advice.quantile:g} of the distances between two augmented views of an image",
        soft_wrap=True,
    )
    out.print()
    content = _content(advice, config, data_dir)
    titles = ("images", "alone", "N̂", f"{estimate.level:.0%} interval", "β̂", "N shrunken", "Ê", "weight")
    rows = content["classes"]
    print_classes(out, ("class", *titles), rows, lambda row: [row["class"], *_cells(row)])
    if not any(row["alone"] for row in rows):
        hint = (
            "a smaller --quantile" if advice.features.startswith("features of") else "--run RUN or a smaller --quantile"
        )
        out.print()
        out.print(
            f"No image is alone in its class, so this says little more than that images are alike: try {hint}",
            soft_wrap=True,
        )
    typical = "more prototypes than can be told" if content["prototypes"] is None else f"N = {_number(estimate.pooled)}"
    out.print()
    for line in (
        f"one β for all classes: {content['beta']:.6g} ({typical})",
        content["command"],
        "a β for each class:",
        content["command_with_betas"],
    ):
        out.print(line, soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    few = row["images"] < 2
    return [
        f"{row['images']:,}",
        f"{row['alone']:,}",
        "-" if few else _number(row["prototypes"]),
        f"{_number(row['prototypes_low'])} to {_number(row['prototypes_high'])}",
        "-" if few else f"{row['beta']:.5g}",
        _number(row["prototypes_shrunken"]),
        _number(row["effective_number"]),
        f"{row['weight']:.4g}",
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "∞"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.2g}"
